"""The summary of a run: summary.json (docs/metrics.md), and the lines that a user sees at the end."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from tessera.evaluation.evaluator import Evaluation
from tessera.evaluation.outcomes import Outcomes, outcome_figures
from tessera.graph.plan import Plan
from tessera.runs.best_checkpoint import BestCheckpoint
from tessera.runs.display import number
from tessera.runs.metrics import Meter


def make_summary(
    plan: Plan,
    config: dict[str, Any],
    meter: Meter,
    evaluation: Evaluation,
    target: float | None,
    *,
    wall_seconds: float,
    startup_seconds: float,
    steps_per_second: float,
    seconds_to_target: float,
    stop_reason: str | None,
    best: BestCheckpoint | None,
    restarts: int,
    lost_rows: int,
    beside: dict[str, Any],
) -> dict[str, Any]:
    """All entries of summary.json; numbers that are not known are null. `beside`: what was predicted and measured."""
    target = known_target(plan.env) if target is None else target
    return {
        "system": config.get("system"),
        "algorithm": plan.algorithm,
        "env": plan.env,
        "policy": plan.policy,
        "engine": plan.engine,
        "seed": config["seed"],
        "env_steps": meter.env_steps,
        "updates": meter.updates,
        "episodes": meter.episodes,
        "wall_seconds": round(wall_seconds, 3),
        "startup_seconds": rounded(startup_seconds),
        "steps_per_second": rounded(steps_per_second),
        "train_return_mean": rounded(meter.mean_return),
        "eval_return_mean": rounded(evaluation.return_mean),
        "eval_return_std": rounded(evaluation.return_std),
        "eval_episodes": len(evaluation.returns),
        **outcome_figures(evaluation.outcomes, evaluation.opponent, "eval_"),
        "target_return": target,
        "solved": None if target is None else bool(evaluation.return_mean >= target),
        "best_return_mean": None if best is None else rounded(best.return_mean),
        "best_update": None if best is None else best.update,
        "stopped_early": stop_reason is not None,
        "stop_reason": stop_reason,
        "seconds_to_target": rounded(seconds_to_target),
        "lag_mean": rounded(meter.lag_mean),
        "lag_max": rounded(meter.lag_max),
        "restarts": restarts,
        "lost_rows": lost_rows,
        **beside,
    }


def summary_lines(summary: dict[str, Any], folder: Path | None) -> list[str]:
    """What the user is shown of a summary."""
    verdict = {None: "", True: ": solved", False: ": not solved"}[summary["solved"]]
    mean, speed = summary["eval_return_mean"], summary["steps_per_second"]
    predicted = summary["predicted"] and f", predicted {summary['predicted']['steps_per_second']:,.0f}"
    lines = [
        f"greedy return {number(math.nan if mean is None else mean)} over {summary['eval_episodes']} episodes"
        f"{verdict}; {summary['env_steps']:,} steps in {summary['wall_seconds']:.1f} s"
        + ("" if speed is None else f" ({speed:,.0f} steps/s after the first update{predicted or ''})")
    ]
    if summary["eval_opponent"]:
        counts = Outcomes(*(summary[f"eval_{name}"] for name in Outcomes._fields))
        lines.append(counts.in_words(summary["eval_opponent"]))
    if summary["stop_reason"]:
        lines.append(f"stopped early, at update {summary['updates']}: {summary['stop_reason']}")
    if summary["restarts"]:
        lost = f"; {summary['lost_rows']:,} rows of experience were lost with them" if summary["lost_rows"] else ""
        died = "1 replica died and was" if summary["restarts"] == 1 else f"{summary['restarts']} replicas died and were"
        lines.append(f"{died} started again{lost}")
    return [*lines, f"results in {folder}"] if folder else lines


def known_target(env: str) -> float | None:
    """The return at which Gymnasium calls a task of this name solved, if it has such a number."""
    import gymnasium

    found = gymnasium.registry.get(env.rpartition(":")[2])
    return None if found is None else found.reward_threshold


def rounded(x: float) -> float | None:
    """A number as a summary has it; None if it is not finite."""
    return round(float(x), 4) if math.isfinite(x) else None
