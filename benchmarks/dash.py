"""What the dashboard takes: time and memory for many and for huge runs, and CPU time beside a run.

    python benchmarks/dash.py large                    # 200 runs of 20,000 rows, and one of 1 GB; 5 GB of disk
    python benchmarks/dash.py beside --pairs 20        # windows of one run, without it and with it in turn

CPU-seconds are those of the run's processes and of the dashboard, per update, once that has started. The interval is
that of the mean log ratio of neighbouring windows, at 95 %. What the dashboard's own process takes is also measured by
itself.
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
from tessera.support.load import core_times

SECONDS, SETTLING = 3.0, 2.5
"""How long a window is, and how long before it a dashboard is started or ended."""
CASES = ("idle", "stream", "page")
"""Nobody reads the dashboard; a client hears its events; it also asks for curves and spans, as the page does."""
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


class Windows(tessera.Callback):
    """Cuts a run into windows, without a dashboard and with one in turn, and takes the CPU-seconds of each.

    One run is compared with itself: two runs of the same differ by more than what is measured here.
    """

    def __init__(self, case: str, folder: Path, pairs: int) -> None:
        self._case, self._folder, self._left = case, folder, 2 * pairs
        self._stack = contextlib.ExitStack()
        self._dashboard: int | None = None
        self._reader: int | None = None
        self._begins = SETTLING
        self._first: tuple[int, float, float] | None = None
        self.costs: list[float] = []
        """CPU-seconds of an update in each window; every other one is with a dashboard."""
        self.shares: list[float] = []
        """CPU-seconds of the dashboard for each of the run's, in windows with one."""

    def on_update(self, event: tessera.UpdateEvent) -> None:
        """Begin a window once what begins with it is under way, and end it."""
        seconds = event.metrics["seconds"]
        if seconds < self._begins or (self._first is not None and seconds < self._begins + SECONDS):
            return
        times = core_times()
        assert times is not None
        now = event.update, times.own - used(self._reader), used(self._dashboard)
        if self._first is None:
            self._first, self._begins = now, seconds
            return
        updates, all_of_them, of_dashboard = (after - before for before, after in zip(self._first, now, strict=True))
        self.costs.append(all_of_them / updates)
        if self._dashboard is not None:
            self.shares.append(of_dashboard / (all_of_them - of_dashboard))
        self._turn()
        self._begins, self._first = event.metrics["seconds"] + SETTLING, None
        if len(self.costs) == self._left:
            self._stack.close()
            event.stop("measured")

    def _turn(self) -> None:
        """End the dashboard, or start one."""
        was_there = self._dashboard is not None
        self._stack.close()
        self._dashboard = self._reader = None
        if was_there:
            return
        said: list[str] = []
        self._dashboard = self._stack.enter_context(dashboard_beside(self._folder, None, said.append))
        if self._case != "idle":
            command = [sys.executable, __file__, "read", said[0].split()[-1], self._case]
            reader = subprocess.Popen(command)
            self._stack.callback(reader.wait)
            self._stack.callback(reader.kill)
            self._reader = reader.pid


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


def beside(options: argparse.Namespace) -> None:
    """Measure each case in a run of its own."""
    for case in options.only:
        with tempfile.TemporaryDirectory() as root:
            folder = Path(root) / "run"
            windows = Windows(case, folder, options.pairs)
            tessera.train(
                tessera.IMPALA(), "CartPole-v1", "single_learner_coarse:actors=2,mode=async", steps=1 << 30,
                run_dir=folder, callbacks=[windows], quiet=True, checkpoint_every=1e6, eval_episodes=1,
            )  # fmt: skip
        without, beside = windows.costs[::2], windows.costs[1::2]
        ratios = [math.log(b / a) for a, b in zip(without, beside, strict=True)]
        mean, half = statistics.mean(ratios), 1.96 * statistics.stdev(ratios) / math.sqrt(len(ratios))
        print(
            f"{case}: {math.exp(mean):.4f} times ({math.exp(mean - half):.4f} to {math.exp(mean + half):.4f}); "
            f"{statistics.median(without) * 1e3:.3g} ms per update without; the dashboard itself takes "
            f"{statistics.mean(windows.shares):.3%} of what the run takes, at most {max(windows.shares):.3%}",
            flush=True,
        )
        print(json.dumps({case: ratios}), file=sys.stderr, flush=True)


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
    of_beside.add_argument("--pairs", type=int, default=20)
    of_beside.add_argument("--only", choices=CASES, nargs="*", default=CASES)
    of_beside.set_defaults(run=beside)
    of_reading = commands.add_parser("read")
    of_reading.add_argument("address")
    of_reading.add_argument("case")
    of_reading.set_defaults(run=read)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
