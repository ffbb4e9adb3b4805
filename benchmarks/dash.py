"""What the dashboard takes: time and memory for many and for huge runs, and CPU time beside a run.

    python benchmarks/dash.py large                    # 200 runs of 20,000 rows, and one of 1 GB; 5 GB of disk
    python benchmarks/dash.py beside --rounds 20       # a run without it, with it, and while it is read
    python benchmarks/dash.py beside --only stream

CPU-seconds are those of the run's processes and of the dashboard, per update, once both have started. A round measures
each case once, in turn; the interval is that of the mean log ratio to the run without a dashboard, at 95 %. What the
dashboard's own process takes is also measured by itself, which is exact where ratios are lost in noise.
"""

import argparse
import contextlib
import http.client
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import tessera
from tessera.dash.beside import dashboard_beside
from tessera.engines.driver.pool import keep_processes
from tessera.support.load import core_times

SECONDS, SETTLING = 8.0, 3.0
"""How long a run is measured, and how long it has gone on before that."""
CASES = ("without", "idle", "stream", "page")
METRICS = ("train_return_mean", "steps_per_second", "lag/mean", "lag/max", "learn/loss", "learn/policy_loss",
           "learn/value_loss", "learn/entropy", "learn/gradient_norm")  # fmt: skip
FLOW = ("messages", "lag_mean", "lag_max", "bytes", "fill", "waits", "wait_seconds", "dropped")
STREAMS = [f"stream/{name}/{what}" for name in ("experience", "params") for what in FLOW]


def rows(count: int, seed: int) -> Iterator[str]:
    """Rows as wide as those of IMPALA."""
    draw = random.Random(seed)
    for k in range(1, count + 1):
        row = {"update": k, "env_steps": 128 * k, "episodes": k, "seconds": 0.5 * k, "restarts": 0, "lost_rows": 0}
        yield json.dumps(row | {name: draw.gauss(100, 10) for name in (*METRICS, "train_length_mean", *STREAMS)}) + "\n"


def write_runs(root: Path, count: int, length: int) -> None:
    """Make run folders that differ in their seed."""
    text = "".join(rows(length, 0))
    for seed in range(count):
        folder = root / f"run-{seed:03d}"
        folder.mkdir(parents=True)
        config = {"algorithm": {"name": "impala"}, "env": "CartPole-v1", "policy": "fused", "engine": "local"}
        (folder / "config.json").write_text(json.dumps({**config, "seed": seed, "steps": 128 * length}))
        (folder / "metrics.jsonl").write_text(text)


def write_huge(folder: Path, size: int) -> None:
    """Make a run with so many bytes of metrics."""
    folder.mkdir(parents=True)
    text = "".join(rows(20_000, 1))
    with (folder / "metrics.jsonl").open("w") as file:
        for _ in range(math.ceil(size / len(text))):
            file.write(text)


class Dashboard:
    """`tessera dash` on a folder."""

    def __init__(self, root: Path) -> None:
        command = [sys.executable, "-m", "tessera", "dash", str(root), "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = next(word for word in self.process.stdout.readline().split() if word.startswith("http"))

    def time(self, path: str, **query: Any) -> tuple[float, int]:
        """Seconds until the whole answer is there, and its bytes."""
        begun = time.perf_counter()
        body = ask(self.address, f"{path}?{urlencode(query, doseq=True)}")
        return time.perf_counter() - begun, len(body)

    def memory(self) -> float:
        """The most megabytes that it has held."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait()


def ask(address: str, path: str) -> bytes:
    """What the dashboard answers."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    connection.request("GET", path)
    body = connection.getresponse().read()
    connection.close()
    return body


def large(options: argparse.Namespace) -> None:
    """Time the overview of many runs, their curves, and those of a huge one."""
    root = Path(tempfile.mkdtemp(prefix="dash", dir=options.folder))
    try:
        write_runs(root / "many", options.runs, options.rows)
        write_huge(root / "huge" / "run", options.bytes)
        many = Dashboard(root / "many")
        names = [f"run-{k:03d}" for k in range(options.runs)]
        questions: dict[str, tuple[str, dict[str, Any]]] = {
            "overview": ("/api/runs", {}),
            "overview again": ("/api/runs", {}),
            "one run": ("/api/run", {"name": names[0]}),
            "its curves": ("/api/curves", {"run": names[0], "metric": METRICS}),
            "its curves again": ("/api/curves", {"run": names[0], "metric": METRICS}),
            "a curve of all runs": ("/api/curves", {"run": names, "metric": METRICS[0]}),
            "again, joined over seeds": ("/api/curves", {"run": names, "metric": METRICS[0], "merge": 1}),
        }
        measure_questions(f"{options.runs} runs of {options.rows:,} rows", many, questions)
        huge = Dashboard(root / "huge")
        size = (root / "huge" / "run" / "metrics.jsonl").stat().st_size
        curves = ("/api/curves", {"run": "run", "metric": METRICS})
        asked = {"overview": ("/api/runs", {}), "its curves": curves, "its curves again": curves}
        measure_questions(f"one run of {size / 1e9:.2f} GB", huge, asked)
    finally:
        shutil.rmtree(root)


def measure_questions(title: str, served: Dashboard, questions: dict[str, tuple[str, dict[str, Any]]]) -> None:
    """Ask each question in turn, and print what it took."""
    print(title)
    for words, (path, query) in questions.items():
        seconds, size = served.time(path, **query)
        print(f"  {words}: {seconds:.3f} s, {size / 1e3:,.0f} kB; memory so far {served.memory():.0f} MB", flush=True)
    served.stop()


class Cores(tessera.Callback):
    """Takes the CPU-seconds of this process and all that it has started, but for a reader's; apart, the dashboard's."""

    def __init__(self, reader: subprocess.Popen[bytes] | None, dashboard: int | None) -> None:
        self._reader = None if reader is None else reader.pid
        self._dashboard = dashboard
        self._first: tuple[int, float, float] | None = None
        self.per_update = self.share = math.nan

    def on_update(self, event: tessera.UpdateEvent) -> None:
        """Begin once programs are compiled, and end the run when it has been measured."""
        seconds = event.metrics["seconds"]
        if seconds < SETTLING or (self._first is not None and seconds < self._until):
            return
        times = core_times()
        assert times is not None
        dashboard = used(self._dashboard)
        now = event.update, times.own - used(self._reader), dashboard
        if self._first is None:
            self._first, self._until = now, seconds + SECONDS
            return
        updates, all_of_them, of_dashboard = (after - before for before, after in zip(self._first, now, strict=True))
        self.per_update, self.share = all_of_them / updates, of_dashboard / (all_of_them - of_dashboard)
        event.stop("measured")


def used(process: int | None) -> float:
    """CPU-seconds of a process so far."""
    if process is None:
        return 0.0
    facts = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(facts[11]) + int(facts[12])) / os.sysconf("SC_CLK_TCK")


def read(options: argparse.Namespace) -> None:
    """Read a dashboard until somebody ends this."""
    base, _, name = options.address.partition("#run=")
    query = urlencode({"name": name})
    if options.case == "page":
        threading.Thread(target=ask_again, args=(base, name), daemon=True).start()
    connection = http.client.HTTPConnection(urlsplit(base).netloc)
    connection.request("GET", f"/api/events?{query}")
    for _ in connection.getresponse():
        pass


def ask_again(base: str, name: str) -> None:
    """Ask for curves and spans every two seconds."""
    curves = urlencode({"run": name, "metric": METRICS, "by": "env_steps", "points": 1000}, doseq=True)
    while True:
        ask(base, f"/api/curves?{curves}")
        ask(base, f"/api/spans?{urlencode({'name': name})}")
        time.sleep(2)


def cost(case: str) -> tuple[float, float]:
    """CPU-seconds of one update, and how many the dashboard takes for each of the run's."""
    said: list[str] = []
    with tempfile.TemporaryDirectory() as root, contextlib.ExitStack() as stack:
        folder = Path(root) / "run"
        dashboard = reader = None
        if case != "without":
            dashboard = stack.enter_context(dashboard_beside(folder, None, said.append))
        if case in ("stream", "page"):
            reader = subprocess.Popen([sys.executable, __file__, "read", said[0].split()[-1], case])
            stack.callback(reader.wait)
            stack.callback(reader.kill)
        cores = Cores(reader, dashboard)
        tessera.train(
            tessera.IMPALA(), "CartPole-v1", "single_learner_coarse:actors=2,mode=async", steps=1 << 30, run_dir=folder,
            callbacks=[cores], quiet=True, checkpoint_every=1e6, eval_episodes=1,
        )  # fmt: skip
    assert len(said) <= 1, said
    return cores.per_update, cores.share


def beside(options: argparse.Namespace) -> None:
    """Measure each case in every round."""
    cases = ("without", *(case for case in CASES[1:] if case in options.only))
    found: dict[str, list[tuple[float, float]]] = {case: [] for case in cases}
    with keep_processes():
        cost("without")  # the first one begins with a machine that has not compiled or opened anything
        for number in range(options.rounds):
            k = number % len(cases)
            for case in (*cases[k:], *cases[:k]):
                found[case].append(cost(case))
            print(json.dumps({case: costs[-1] for case, costs in found.items()}), file=sys.stderr, flush=True)
    base = [per_update for per_update, _ in found.pop("without")]
    print(f"without: {statistics.median(base) * 1e3:.4g} ms of CPU time per update, {len(base)} rounds")
    for case, costs in found.items():
        ratios = [math.log(b / a) for a, (b, _) in zip(base, costs, strict=True)]
        mean, half = statistics.mean(ratios), 1.96 * statistics.stdev(ratios) / math.sqrt(len(ratios))
        low, high = math.exp(mean - half), math.exp(mean + half)
        shares = [share for _, share in costs]
        print(
            f"{case}: {math.exp(mean):.4f} times ({low:.4f} to {high:.4f}); the dashboard itself takes "
            f"{statistics.mean(shares):.3%} of what the run takes, at most {max(shares):.3%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    of_large = commands.add_parser("large")
    of_large.add_argument("--runs", type=int, default=200)
    of_large.add_argument("--rows", type=int, default=20_000)
    of_large.add_argument("--bytes", type=float, default=1e9)
    of_large.add_argument(
        "--folder", type=Path, default=None, help="where to write them; default: the temporary folder"
    )
    of_large.set_defaults(run=large)
    of_beside = commands.add_parser("beside")
    of_beside.add_argument("--rounds", type=int, default=20)
    of_beside.add_argument("--only", choices=CASES[1:], nargs="*", default=CASES[1:])
    of_beside.set_defaults(run=beside)
    of_reading = commands.add_parser("read")
    of_reading.add_argument("address")
    of_reading.add_argument("case")
    of_reading.set_defaults(run=read)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
