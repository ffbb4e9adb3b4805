"""What it costs a run to write its live files: CPU-seconds of all its processes per update, with and without.

    python benchmarks/live_cost.py                     # 24 interleaved pairs of four runs each, about 20 minutes
    python benchmarks/live_cost.py --pairs 20 --only impala

Each run is measured from its first rows of metrics to its last. The interval is that of the mean log ratio, at 95 %.
"""

import argparse
import contextlib
import math
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import tessera
from tessera.engines.driver.pool import keep_processes
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--only", choices=CASES, nargs="*", default=list(CASES))
    options = parser.parse_args()
    with keep_processes():
        for case in options.only:
            ratios, costs = [], []
            for number in range(options.pairs):
                order = (True, False) if number % 2 else (False, True)
                found = {written: measure(case, written) for written in order}
                ratios.append(math.log(found[True] / found[False]))
                costs.append(found[False])
            mean, spread = statistics.mean(ratios), statistics.stdev(ratios) / math.sqrt(len(ratios))
            low, high = (math.exp(mean + k * 1.96 * spread) for k in (-1, 1))
            print(
                f"{case}: {math.exp(mean):.4f} times the CPU-seconds per update ({low:.4f} to {high:.4f}, "
                f"{len(ratios)} pairs; median {math.exp(statistics.median(ratios)):.4f}); "
                f"{statistics.median(costs) * 1e3:.3g} ms without",
                flush=True,
            )


if __name__ == "__main__":
    main()
