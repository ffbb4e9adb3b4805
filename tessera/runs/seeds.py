"""Runs that differ in their seeds only: what all of them together have shown."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tessera.evaluation.intervals import bootstrap_interval, interquartile_mean
from tessera.runs.display import number
from tessera.runs.run_summary import rounded
from tessera.support.files import write_json, write_text

RESAMPLES = 500
"""Bootstrap resamples for each row of metrics; the summary has more."""
MOST_ROWS = 1000
"""Rows of metrics of all seeds together."""

Rows = Sequence[Mapping[str, Any]]


def joined_rows(members: Sequence[Rows]) -> list[dict[str, float]]:
    """Rows of metrics of all seeds together: the interquartile mean of returns, with its 95 % band over seeds.

    Seeds that run on processes of their own report at different updates. Each counts with its newest row at the time.
    """
    members = [rows for rows in members if rows]
    if not members:
        return []
    updates = sorted({int(row["update"]) for row in max(members, key=len)})
    if len(updates) > MOST_ROWS:
        updates = [updates[k] for k in np.linspace(0, len(updates) - 1, MOST_ROWS).astype(int)]
    positions = [[int(row["update"]) for row in rows] for rows in members]
    out = []
    for update in updates:
        newest = [int(np.searchsorted(at, update, "right")) - 1 for at in positions]
        rows = [member[k] for member, k in zip(members, newest, strict=True) if k >= 0]
        out.append({"update": update, "seeds": len(rows), **_joined(rows)})
    return out


def _joined(rows: Rows) -> dict[str, float]:
    returns = np.asarray(_known(rows, "train_return_mean"))
    speeds = _known(rows, "steps_per_second")
    figures = dict.fromkeys(("mean", "iqm", "iqm_low", "iqm_high", "min", "max"), math.nan)
    if len(returns):
        low, high = bootstrap_interval(returns, interquartile_mean, resamples=RESAMPLES)
        iqm = float(interquartile_mean(returns))
        values = (float(returns.mean()), iqm, low, high, float(returns.min()), float(returns.max()))
        figures = dict(zip(figures, values, strict=True))
    return {
        "env_steps": float(np.mean([row["env_steps"] for row in rows])),
        **{f"train_return_{name}": value for name, value in figures.items()},
        "seconds": max(row["seconds"] for row in rows),
        "steps_per_second": sum(speeds) if speeds else math.nan,
    }


def _known(rows: Rows, name: str) -> list[float]:
    return [row[name] for row in rows if is_number(row.get(name))]


def joined_summary(config: Mapping[str, Any], members: Mapping[int, Mapping[str, Any]], failed: Mapping[int, str],
                   wall_seconds: float) -> dict[str, Any]:  # fmt: skip
    """The summary of all seeds together, from the summary of each; `failed` says why others have none."""
    first = next(iter(members.values()), {})
    returns = {seed: summary["eval_return_mean"] for seed, summary in members.items()}
    known = np.asarray([x for x in returns.values() if is_number(x)])
    low, high = bootstrap_interval(known, interquartile_mean)
    solved = [summary["solved"] for summary in members.values()]
    found: dict[str, Any] = {
        "system": config.get("system"),
        "algorithm": config["algorithm"]["name"],
        "env": config["env"],
        "policy": config["policy"],
        "engine": config["engine"],
        "seed": config["seed"],
        "seeds": config["seeds"],
        "env_steps": sum(summary["env_steps"] for summary in members.values()),
        "wall_seconds": round(wall_seconds, 3),
        "eval_episodes": first.get("eval_episodes"),
        "eval_returns": {str(seed): value for seed, value in returns.items()},
        "target_return": first.get("target_return"),
        "solved": None if None in solved or not solved else sum(solved),
        "failed": {str(seed): why for seed, why in failed.items()},
    }
    figures = {"mean": math.nan, "iqm": math.nan, "median": math.nan, "min": math.nan, "max": math.nan}
    if len(known):
        values = (known.mean(), interquartile_mean(known), np.median(known), known.min(), known.max())
        figures = dict(zip(figures, map(float, values), strict=True))
        found["worst_seed"] = min(returns, key=lambda seed: returns[seed] if is_number(returns[seed]) else math.inf)
        found["best_seed"] = max(returns, key=lambda seed: returns[seed] if is_number(returns[seed]) else -math.inf)
    figures |= {"iqm_low": low, "iqm_high": high}
    return found | {f"eval_return_{name}": rounded(value) for name, value in figures.items()}


def joined_lines(summary: Mapping[str, Any], folder: Path | None) -> list[str]:
    """What the user is shown of such a summary."""
    values = {k: math.nan if summary.get(k) is None else summary[k] for k in summary if k.startswith("eval_return_")}
    done = len(summary["eval_returns"])
    solved = "" if summary["solved"] is None else f"; {summary['solved']} of {done} solved"
    lines = []
    if done:
        lines.append(
            f"greedy return over {done} seed{'s' * (done > 1)}: interquartile mean {number(values['eval_return_iqm'])} "
            f"(95 % {number(values['eval_return_iqm_low'])} to {number(values['eval_return_iqm_high'])}), median "
            f"{number(values['eval_return_median'])}, worst {number(values['eval_return_min'])} (seed "
            f"{summary.get('worst_seed', '-')}), best {number(values['eval_return_max'])} (seed "
            f"{summary.get('best_seed', '-')}){solved}; {summary['env_steps']:,} steps in "
            f"{summary['wall_seconds']:.1f} s"
        )
    return [*lines, f"results in {folder}"] if folder else lines


def write_joined(folder: Path, rows: Sequence[Mapping[str, float]], summary: Mapping[str, Any]) -> None:
    """Write metrics.jsonl and summary.json of all seeds together."""
    plain = [{k: v if math.isfinite(v) else None for k, v in row.items()} for row in rows]
    write_text(folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in plain))
    write_json(folder / "summary.json", summary)


def is_number(x: Any) -> bool:
    """Whether a value of a row or a summary is there, and finite."""
    return isinstance(x, int | float) and math.isfinite(x)
