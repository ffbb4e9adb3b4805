"""Every named policy on processes of this machine until CartPole is solved; what was measured becomes docs/policies.md.

    python benchmarks/policies.py                              # all of them, and the page: about 10 minutes
    python benchmarks/policies.py central central:mode=async   # some of them, and no page

What the page says of a policy comes from the policy itself: its docstrings, options, fragments and streams. Only what
it is for is written here.
"""

import argparse
import inspect
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tessera import A2C, DQN, IMPALA, PPO, policies
from tessera.api import Result, train
from tessera.engines.driver.pool import keep_processes
from tessera.graph.disciplines import mode_of
from tessera.graph.draw import table
from tessera.planning.prepare import prepare_plan

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

NOTES: dict[str, str] = {
    "averaging": "For slow links: with `every` large, replicas train alone for long and hardly exchange anything.",
    "central": (
        "For many workers that compute gradients and one place that owns the params; shards divide the memory"
        " and the work of the optimiser. `async` never waits for the slowest worker, and pays with stale "
        "gradients."
    ),
    "decentralised": (
        "For slow links without a server: only what has added up to the threshold is sent. Choose a threshold"
        " of the size of the largest elements of a clipped gradient: an element far above it arrives late and"
        " in pieces, one far below it arrives rarely."
    ),
    "distributed_replay": (
        "For replay algorithms: the store has processes, and so memory, of its own. Under `async` no replica "
        "waits for params, but a store still draws a set number of samples for every unroll that it takes in,"
        " which holds the ratio of samples to steps."
    ),
    "environments": "For worlds that several agents share, and for simulators that must live apart from the learner.",
    "fused": (
        "The default, and the reference that every synchronous policy equals. Nothing is faster for device "
        "environments, and on one machine little is faster for host environments."
    ),
    "gorila": (
        "For replay algorithms with several learners. `bundled` gives every actor its own replay and learner,"
        " so that only gradients and params travel."
    ),
    "hogwild": (
        "For small networks on many cores: no server, no locks, no waiting. What two replicas add at the same"
        " instant may be lost, and runs do not repeat."
    ),
    "mirrored": (
        "For updates that are cheap compared with the experience they need: every replica repeats the same "
        "computation instead of exchanging its result."
    ),
    "multi_learner": (
        "For gradients that are costly to compute: each replica has its part of every minibatch, and all hold"
        " the same params."
    ),
    "multi_learner_coarse": (
        "For slow environments and a slow learner at once: actors divide the stepping, learners the gradients."
    ),
    "single_learner_coarse": (
        "For environments that are slow to step: actors divide the stepping, and only whole unrolls travel. "
        "`async` is for actors of uneven speed, and for off-policy corrections that bear the lag; `first` "
        "keeps the update on policy without waiting for stragglers."
    ),
    "single_learner_fine": (
        "For networks that are costly to act with: one big batched forward pass serves all environments, and "
        "no params travel. Every step waits for a round trip."
    ),
    "split_inference": "For large networks, where acting and learning each fill accelerators of their own.",
}
"""What each policy is for."""


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
        f"{MARKER} `{command}`: change the policies or that script, not this part. -->",
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
    for name in policies.names():
        lines += ["", *section(name)]
    return by_hand.partition(MARKER)[0] + "\n".join(lines) + "\n"


def section(name: str) -> list[str]:
    """What a policy is, and what becomes of each of its cases."""
    function = policies.maker(name)
    module, policy = inspect.getmodule(function), policies.get(name)
    lines = [f"## `{name}`", "", inspect.cleandoc(module.__doc__ or ""), "", inspect.getdoc(function) or ""]
    lines += ["", f"Mirrors: {policy.mirrors}.", "", NOTES[name], ""]
    given = [f"`{key}={_shown(default)}`" for key, default in policies.options(function).items()]
    lines += [f"Options and their defaults: {', '.join(given)}." if given else "It has no options."]
    for text, algorithm in CASES.items():
        if policies.split(text)[0] == name:
            lines += ["", f"`{text}`, here for {algorithm}:", "", "```text", *_plan(text, algorithm), "```"]
    return lines


def _shown(default: Any) -> str:
    return str(default).lower() if default is None or isinstance(default, bool) else str(default)


def _plan(text: str, algorithm: str) -> list[str]:
    """Fragments and streams, as `tessera plan` prints them."""
    *_, plan = prepare_plan(ALGORITHMS[algorithm], ENV, text, engine="local")
    return table(plan).partition("\n\n")[2].splitlines()


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
