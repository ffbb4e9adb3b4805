"""Every named policy on processes of this machine until CartPole is solved; docs/policies.md has what was measured.

    python benchmarks/policies.py                              # all of them, and the page: about 10 minutes
    python benchmarks/policies.py central central:mode=async   # some of them, and no page

Only the part "Measured" of the page is written here. The pages of the policies show its rows
(`docs/_ext/policies.py`).
"""

import argparse
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tessera import A2C, DQN, IMPALA, PPO
from tessera.api import Result, train
from tessera.engines.driver.pool import keep_processes
from tessera.graph.disciplines import mode_of

ENV, TARGET, STEPS = "gymnax:CartPole-v1", 475.0, 500_000
PAGE = Path(__file__).resolve().parent.parent / "docs" / "policies.md"
ALGORITHMS: dict[str, Any] = {"a2c": A2C(), "dqn": DQN(), "impala": IMPALA(), "ppo": PPO()}

CASES: dict[str, str] = {
    "fused": "ppo",
    "single_learner_coarse": "ppo",
    "single_learner_coarse:mode=async": "ppo",
    "single_learner_coarse:actors=4,mode=first,first=3": "ppo",
    "single_learner_fine": "ppo",
    "multi_learner": "ppo",
    "multi_learner_coarse": "ppo",
    "multi_learner_coarse:mode=async": "impala",
    "environments": "ppo",
    "central": "ppo",
    "central:shards=2": "ppo",
    "central:mode=async": "a2c",
    "central:shards=2,mode=async": "a2c",
    "distributed_replay": "dqn",
    "distributed_replay:mode=async": "dqn",
    "gorila": "ppo",
    "gorila:bundled=true": "ppo",
    "split_inference": "ppo",
    "hogwild": "a2c",
    "averaging": "ppo",
    "averaging:every=4": "ppo",
    "decentralised": "a2c",
    "decentralised:threshold=0.01": "a2c",
    "mirrored": "ppo",
}
"""What is run, and the algorithm, with its default flags, that it is run with."""


@dataclass(frozen=True)
class Row:
    """What one run gave."""

    policy: str
    algorithm: str
    seed: int
    steps_per_second: float
    seconds: float
    """From the first update, which compiles, until greedy episodes reached the target, or the end."""
    steps: int
    lag_mean: float
    """Updates by which the params that made experience, or a gradient, trailed behind those that it went into."""
    lag_max: float
    greedy_return: float

    @property
    def solved(self) -> bool:
        """Whether the target was reached."""
        return self.greedy_return >= TARGET


def measure(policy: str, seed: int, algorithm: str = "", steps: int = STEPS) -> Row:
    """Train on processes until the target or for `steps`."""
    name = algorithm or CASES[policy]
    result = train(
        ALGORITHMS[name], ENV, policy, steps=steps, seed=seed, target_return=TARGET, engine="local", quiet=True
    )
    summary = result.summary
    seconds = (summary["seconds_to_target"] or summary["wall_seconds"]) - result.metrics[0]["seconds"]
    speed, lags = summary["steps_per_second"], _lags(result)
    return Row(policy, name, seed, speed, seconds, summary["env_steps"], *lags, summary["eval_return_mean"])


def _lags(result: Result) -> tuple[float, float]:
    """Mean and maximum lag: of gradients where they are applied late, or else of what is learned from."""
    late = result.plan.solo or any(
        c.stream == "gradients" and mode_of(c.discipline) == "async" for c in result.plan.channels
    )
    mean, most = ("stream/gradients/lag_mean", "stream/gradients/lag_max") if late else ("lag/mean", "lag/max")
    rows = [row for row in result.metrics if math.isfinite(row.get(mean, math.nan))]
    if not rows:
        return math.nan, math.nan
    return statistics.fmean(row[mean] for row in rows), max(row[most] for row in rows)


COLUMNS = ("policy", "algorithm", "steps/s", "seconds to 475", "steps", "lag mean", "lag max", "greedy return", "seed")


def cells(row: Row) -> tuple[str, ...]:
    """A row as text."""
    lag = ["-" if math.isnan(x) else f"{x:.3g}" for x in (row.lag_mean, row.lag_max)]
    seconds = f"{row.seconds:.1f}" if row.solved else "not solved"
    figures = (f"{row.steps_per_second:,.0f}", seconds, f"{row.steps:,}", *lag, f"{row.greedy_return:.0f}")
    return (f"`{row.policy}`", row.algorithm, *figures, str(row.seed))


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table."""
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


MARKER = "<!-- From here on made by"
"""Where the part of the page begins that this script writes; what stands above it is written by hand."""


def page(rows: Sequence[Row], command: str, by_hand: str) -> str:
    """The whole page, with its first part as it is."""
    lines = [
        f"{MARKER} `{command}`: change that script, not this part. -->",
        "",
        "## Measured",
        "",
        f"Every policy until {TARGET:.0f} on {ENV} (mean return of 100 greedy episodes), each replica a process, on",
        "the cores of one small machine: with 2 cores nothing is gained by more processes, so this shows that each",
        "policy learns and what its exchanges cost, not how it scales. Algorithms have their default flags. Seconds",
        "count from the end of the first update, before which programs are compiled. Lag is by how many updates the",
        "params that made a gradient (where gradients need not be waited for) or a sample (elsewhere; for DQN mostly",
        "time in the replay) trailed behind those that it went into.",
        "",
        *markdown(COLUMNS, map(cells, rows)),
    ]
    return by_hand.partition(MARKER)[0] + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("policies", nargs="*", help="which, as in `--policy`; default: all, and the page is written")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="one run for each")
    parser.add_argument("--algorithm", default="", help="instead of each policy's own: " + ", ".join(ALGORITHMS))
    parser.add_argument("--steps", type=int, default=STEPS, help="environment steps, at the most")
    options = parser.parse_args()
    rows = []
    with keep_processes():
        for policy in options.policies or CASES:
            for seed in options.seeds:
                rows.append(measure(policy, seed, options.algorithm, options.steps))
                print("  ".join(cells(rows[-1])), flush=True)
    if not options.policies and not options.algorithm:
        command = " ".join(["python", "benchmarks/policies.py", *sys.argv[1:]])
        PAGE.write_text(page(rows, command, PAGE.read_text()))
        print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
