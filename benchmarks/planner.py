"""Is the planner right? Predicted and measured steps/s of many plans, and what its choice loses against the best.

    python benchmarks/planner.py                         all pairs on this machine
    python benchmarks/planner.py --pairs ppo-cartpole --rounds 5
    python benchmarks/planner.py --page                  and write docs/planner.md

For each pair of an algorithm and an environment a profile is taken, and every plan is predicted from it alone. Then all
plans are started, and run in turn, round after round. Nothing is fitted to what is measured here.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro

from tessera import algorithms
from tessera.cli.profile import progress_bar
from tessera.engines.factory import make_engine
from tessera.engines.simulated.engine import SimulatedEngine
from tessera.errors import TesseraError
from tessera.graph.plan import Plan
from tessera.planning.prepare import prepare_plan
from tessera.profiling.profile import circumstances
from tessera.profiling.take import saved_or_taken
from tessera.support.machine import cores

sys.path.insert(0, str(Path(__file__).resolve().parent))

PAIRS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ppo-cartpole-device": ("ppo", "gymnax:CartPole-v1", {}),
    "dqn-acrobot-device": ("dqn", "gymnax:Acrobot-v1", {}),
    "ppo-cartpole": ("ppo", "CartPole-v1", {}),
    "ppo-halfcheetah": ("ppo", "HalfCheetah-v5", {}),
    "ppo-sleeping": ("ppo", "py:sleeping_env.SleepingEnv", {}),
    "ppo-breakout-device": ("ppo", "gymnax:Breakout-MinAtar", {}),
}
PLANS = (
    "fused:devices=1",
    "single_learner_coarse:actors=1",
    "single_learner_coarse:actors=2",
    "single_learner_coarse:actors=4",
    "single_learner_fine:actors=2",
    "multi_learner:learners=2",
    "central:workers=2",
    "split_inference:workers=2",
)
SIMULATED_UPDATES = 40
WINDOW = 0.5
"""Seconds that one call of an engine takes, about."""


@dataclass
class Options:
    """What to run."""

    pairs: tuple[str, ...] = tuple(PAIRS)
    plans: tuple[str, ...] = PLANS
    rounds: int = 5
    """Times that each plan is measured."""
    seconds: float = 3.0
    """How long each time."""
    budget: float = 60.0
    """Seconds for a profile."""
    fresh: bool = True
    """Take a profile even if one is saved."""
    output: Path | None = None
    """File for all figures, as JSON, after each pair."""
    page: bool = False
    """Write docs/planner.md and docs/planner.png."""


@dataclass
class Measured:
    """One plan."""

    plan: str
    predicted: float
    lag_predicted: float = 0.0
    bottleneck: str = ""
    measured: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """Of all rounds."""
        return statistics.fmean(self.measured)

    @property
    def interval(self) -> tuple[float, float]:
        """Of the mean, 95 %."""
        half = 1.96 * statistics.stdev(self.measured) / math.sqrt(len(self.measured)) if len(self.measured) > 1 else 0.0
        return self.mean - half, self.mean + half


def run_pair(name: str, options: Options) -> dict[str, Any]:
    """Predict and measure all plans of one pair."""
    algorithm, env, settings = PAIRS[name]
    chosen = algorithms.get(algorithm)(**settings)
    bound, environment, base = prepare_plan(chosen, env, None)
    profile = saved_or_taken(bound, environment, base, progress_bar, again=options.fresh, seconds=options.budget)
    print(f"  {profile.seconds:.0f} s, links {profile.costs.links}, wake {profile.costs.wake*1e6:.0f} us, factors {profile.costs.factors}", flush=True)
    rows, running = [], []
    try:
        for text in options.plans:
            try:
                bound, environment, plan = prepare_plan(
                    chosen, env, text, envs=base.envs, groups=base.groups, lag=base.lag
                )
                found = SimulatedEngine(plan, bound, environment, profile.costs, cores()).run(SIMULATED_UPDATES)
            except TesseraError as error:
                print(f"  {text}: {error}")
                continue
            lag = found.flows["experience"].lag_mean if "experience" in found.flows else 0.0
            rows.append(Measured(text, found.steps_per_second, lag, found.bottleneck))
            running.append(Running(plan, bound, environment))
        for _ in range(options.rounds):
            for row, run in zip(rows, running, strict=True):
                row.measured.append(run.measure(options.seconds))
    finally:
        for run in running:
            run.close()
    return report(name, rows)


class Running:
    """A plan under way."""

    def __init__(self, plan: Plan, algorithm: Any, env: Any) -> None:
        self.steps = float(plan.envs_per_update) * algorithm.schedule.steps
        rest: dict[str, Any] = {"trace": ""} if plan.engine == "serial" else {"note": lambda text: None}
        self.engine = make_engine(plan, algorithm, env, 0, 1 << 24, None, **rest)
        self.engine.start()
        for _ in range(3):
            begun = time.perf_counter()
            self.engine.advance(1)
        self.chunk = max(1, min(1024, int(WINDOW / (time.perf_counter() - begun))))
        self.engine.advance(self.chunk)

    def measure(self, seconds: float) -> float:
        """Steps/s."""
        begun, updates = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            self.engine.advance(self.chunk, ahead=self.chunk)
            updates += self.chunk
        rate = updates * self.steps / (time.perf_counter() - begun)
        while self.engine.pending:
            self.engine.advance(min(self.chunk, self.engine.pending))
        return rate

    def close(self) -> None:
        """End it."""
        self.engine.close()


def report(name: str, rows: list[Measured]) -> dict[str, Any]:
    """Print and return what was found."""
    rows = sorted(rows, key=lambda r: -r.mean)
    chosen = max(rows, key=lambda r: r.predicted)
    best = rows[0]
    regret = max(0.0, 1 - chosen.interval[1] / best.interval[0])
    errors = sorted(abs(r.predicted / r.mean - 1) for r in rows)
    print(f"{name}: chosen {chosen.plan}, best {best.plan}, regret {regret:.1%}, tau {tau(rows):.2f}")
    for r in rows:
        low, high = r.interval
        print(
            f"  {r.plan:34s} predicted {r.predicted:10,.0f}  measured {r.mean:10,.0f} ({low:,.0f} to {high:,.0f})"
            f"  {r.predicted / r.mean - 1:+6.1%}  {r.bottleneck}"
        )
    return {
        "pair": name,
        "regret": regret,
        "tau": tau(rows),
        "median_error": statistics.median(errors),
        "rows": [
            {"plan": r.plan, "predicted": r.predicted, "measured": r.measured, "lag": r.lag_predicted} for r in rows
        ],
    }


def tau(rows: list[Measured]) -> float:
    """Kendall's, over pairs of plans whose measured intervals are disjoint."""
    agree = total = 0
    for i, a in enumerate(rows):
        for b in rows[i + 1 :]:
            (a_low, a_high), (b_low, b_high) = a.interval, b.interval
            if a_low > b_high or b_low > a_high:
                total += 1
                agree += 1 if (a.predicted - b.predicted) * (a.mean - b.mean) > 0 else -1
    return agree / total if total else 1.0


def summary(found: list[dict[str, Any]]) -> list[str]:
    """What is asked of a planner, over all pairs."""
    regrets, taus = [f["regret"] for f in found], [f["tau"] for f in found]
    errors = sorted(abs(r["predicted"] / statistics.fmean(r["measured"]) - 1) for f in found for r in f["rows"])
    tail = errors[int(0.9 * (len(errors) - 1))]
    return [
        f"regret    mean {statistics.fmean(regrets):.1%}, worst {max(regrets):.1%}",
        f"tau       mean {statistics.fmean(taus):.2f}, worst {min(taus):.2f}",
        f"error     median {statistics.median(errors):.0%}, 90th percentile {tail:.0%}",
    ]


PAGE = """# Is the planner right?

Made by `python benchmarks/planner.py --page` on {cores} cores ({processor}), load {load:.1f} as it began. For each pair
of an algorithm and an environment a profile was taken ({budget:.0f} s asked), and every plan predicted from it alone.
Then all plans were started, and run in turn for {seconds:g} s, {rounds} times. Nothing was fitted to what was measured.

    {summary}

- *Regret*: by how much the plan with the highest prediction is slower than the fastest one, beyond the intervals (95 %)
  of both.
- *Tau*: Kendall's, over pairs of plans whose measured intervals are disjoint.
- *Error*: of predicted steps/s, over all plans.

![predicted and measured steps per second](planner.png)
"""


def write_page(found: list[dict[str, Any]], options: Options, load: float) -> None:
    """Write docs/planner.md and its picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    docs = Path(__file__).resolve().parent.parent / "docs"
    text = PAGE.format(
        cores=cores(), processor=circumstances()["processor"], load=load, budget=options.budget,
        seconds=options.seconds, rounds=options.rounds, summary="\n    ".join(summary(found)),
    )  # fmt: skip
    figure, axes = pyplot.subplots(figsize=(7, 6))
    for pair in found:
        text += f"\n## {pair['pair']}\n\n`{' '.join(PAIRS[pair['pair']][:2])}`: regret {pair['regret']:.1%}, "
        text += f"tau {pair['tau']:.2f}.\n\n| plan | predicted | measured (95 %) | error |\n| --- | --- | --- | --- |\n"
        for row in pair["rows"]:
            low, high = Measured("", 0.0, measured=row["measured"]).interval
            mean = statistics.fmean(row["measured"])
            text += f"| `{row['plan']}` | {row['predicted']:,.0f} | {mean:,.0f} ({low:,.0f} to {high:,.0f}) | "
            text += f"{row['predicted'] / mean - 1:+.0%} |\n"
        measured = [statistics.fmean(row["measured"]) for row in pair["rows"]]
        axes.plot(measured, [row["predicted"] for row in pair["rows"]], "o", label=pair["pair"])
    ends = axes.get_xlim()
    axes.plot(ends, ends, "-", color="0.7")
    axes.set(xscale="log", yscale="log", xlabel="measured steps/s", ylabel="predicted steps/s")
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(docs / "planner.png", dpi=110)
    (docs / "planner.md").write_text(text)


def main(options: Options) -> None:
    """Run all pairs."""
    load = os.getloadavg()[0]
    found = []
    for name in options.pairs:
        print(name, flush=True)
        found.append(run_pair(name, options))
        if options.output is not None:
            options.output.write_text(json.dumps({"cores": cores(), "pairs": found}, indent=1) + "\n")
    print("\n".join(summary(found)))
    if options.page:
        write_page(found, options, load)


if __name__ == "__main__":
    main(tyro.cli(Options))
