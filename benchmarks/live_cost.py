"""What it costs a run to write its live files: CPU-seconds of all its processes per update, with and without.

    python benchmarks/live_cost.py                     # 24 interleaved pairs of four runs each, about 20 minutes
    python benchmarks/live_cost.py --pairs 20 --only impala
    python benchmarks/live_cost.py --parts --pairs 20   # the same from its parts, far below what pairs can tell apart

Each run is measured from its first rows of metrics to its last. The interval is that of the mean log ratio, at 95 %.

Two runs of the same differ by several per cent, and what is measured is less than one. So `--parts` measures what it
is made of: the CPU-seconds of the thread that writes, itself; and what an update costs more while all of a run is
recorded, of which samples are at most a fiftieth.
"""

import argparse
import contextlib
import functools
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import tessera
from tessera.engines.driver.pool import keep_processes
from tessera.engines.replica.samples import MOST_OF_THE_TIME
from tessera.runs import run_engine
from tessera.runs.live_files import LiveFiles
from tessera.support.load import core_times

SECONDS = 6.0
"""How long a run is measured."""
SETTLING = 2.0
"""Seconds before that."""
CASES = {
    "impala": (tessera.IMPALA(), "CartPole-v1", "single_learner_coarse:actors=2,mode=async"),
    "fine": (tessera.PPO(), "CartPole-v1", "single_learner_fine:actors=2"),
    "lockstep": (tessera.PPO(), "gymnax:CartPole-v1", "single_learner_coarse:actors=2"),
    "fused": (tessera.PPO(), "gymnax:CartPole-v1", "fused"),
}


class Cores(tessera.Callback):
    """Takes the CPU-seconds of this process and all that it has started."""

    def __init__(self) -> None:
        self.first: tuple[int, float] | None = None
        self.per_update = math.nan

    def on_update(self, event: tessera.UpdateEvent) -> None:
        """Begin once programs are compiled, and end the run when it has been measured."""
        seconds = event.metrics["seconds"]
        if seconds < SETTLING:
            return
        used = core_times().own
        if self.first is None:
            self.first = event.update, used
            self.until = seconds + SECONDS
        elif seconds >= self.until:
            self.per_update = (used - self.first[1]) / (event.update - self.first[0])
            event.stop("measured")


@contextlib.contextmanager
def nothing_written() -> Iterator[None]:
    """Runs write no live files within this block, and replicas take no samples."""
    with mock.patch.object(LiveFiles, "open"), mock.patch.object(run_engine, "_recording", return_value=None):
        yield


def measure(case: str, written: bool) -> float:
    """CPU-seconds of one update."""
    algorithm, env, policy = CASES[case]
    cores = Cores()
    with tempfile.TemporaryDirectory() as folder, contextlib.nullcontext() if written else nothing_written():
        tessera.train(
            algorithm, env, policy, steps=1 << 30, run_dir=Path(folder) / "run", callbacks=[cores], quiet=True,
            checkpoint_every=1e6, eval_episodes=1,
        )  # fmt: skip
    return cores.per_update


def measure_traced(case: str, traced: bool) -> float:
    """CPU-seconds of one update, of a run of which all is recorded, or nothing."""
    algorithm, env, policy = CASES[case]
    cores = Cores()
    with tempfile.TemporaryDirectory() as folder, nothing_written():
        tessera.train(
            algorithm, env, policy, steps=1 << 30, callbacks=[cores], quiet=True, eval_episodes=1,
            trace=Path(folder) / "trace.json" if traced else None,
        )  # fmt: skip
    return cores.per_update


def share_of_thread(case: str) -> float:
    """CPU-seconds of the thread that writes, for each of the run's."""
    spent: list[float] = []
    write: Callable[[LiveFiles], None] = LiveFiles.write

    def timed(self: LiveFiles) -> None:
        begun = time.thread_time()
        write(self)
        spent.append(time.thread_time() - begun)

    algorithm, env, policy = CASES[case]
    begun = core_times().own
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(LiveFiles, "write", timed):
        tessera.train(
            algorithm, env, policy, steps=1 << 30, run_dir=Path(folder) / "run", callbacks=[Cores()], quiet=True,
            checkpoint_every=1e6, eval_episodes=1,
        )  # fmt: skip
    return sum(spent) / (core_times().own - begun)


def ratio_of(pairs: int, measured: Callable[[bool], float]) -> tuple[float, float, float, list[float]]:
    """With against without, in pairs of either order: (ratio, its interval, what each run without took)."""
    ratios, costs = [], []
    for number in range(pairs):
        found = {with_it: measured(with_it) for with_it in ((True, False) if number % 2 else (False, True))}
        ratios.append(math.log(found[True] / found[False]))
        costs.append(found[False])
    mean, spread = statistics.mean(ratios), statistics.stdev(ratios) / math.sqrt(len(ratios))
    low, high = (math.exp(mean + k * 1.96 * spread) for k in (-1, 1))
    return math.exp(mean), low, high, costs


def print_parts(case: str, pairs: int) -> None:
    """Print what a run's live files cost, from their parts."""
    shares = [share_of_thread(case) for _ in range(3)]
    ratio, low, high, _ = ratio_of(pairs, lambda traced: measure_traced(case, traced))
    most = max(shares) + max(0.0, high - 1) * MOST_OF_THE_TIME
    print(
        f"{case}: the thread that writes takes {statistics.mean(shares):.3%} (at most {max(shares):.3%}); recorded all "
        f"the time, an update takes {ratio:.3f} times the CPU-seconds ({low:.3f} to {high:.3f}, {pairs} pairs), so "
        f"samples of {MOST_OF_THE_TIME:.0%} at most {max(0.0, high - 1) * MOST_OF_THE_TIME:.3%}; together {most:.2%}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--only", choices=CASES, nargs="*", default=list(CASES))
    parser.add_argument("--parts", action="store_true")
    options = parser.parse_args()
    with keep_processes():
        for case in options.only:
            if options.parts:
                print_parts(case, options.pairs)
                continue
            ratio, low, high, costs = ratio_of(options.pairs, functools.partial(measure, case))
            print(
                f"{case}: {ratio:.4f} times the CPU-seconds per update ({low:.4f} to {high:.4f}, {len(costs)} pairs); "
                f"{statistics.median(costs) * 1e3:.3g} ms without",
                flush=True,
            )


if __name__ == "__main__":
    main()
