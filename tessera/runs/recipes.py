"""Whether a finished run has learned by the recipe of a plan, so that its steps tell how many another will need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tessera.algorithms.contract import Algorithm
from tessera.errors import TesseraError
from tessera.graph.plan import Plan
from tessera.runs import directory


def steps_like(folder: Path, algorithm: Algorithm, plan: Plan) -> int:
    """Steps of a finished run that has learned what this plan would; refused if it has another recipe."""
    config, summary = directory.read_config(folder), directory.read_summary(folder)
    wanted = {
        "algorithm": json.loads(json.dumps(directory.algorithm_config(algorithm))),
        "env": plan.env,
        "envs": plan.envs,
        "groups": plan.groups,
        "lag": plan.lag,
    }
    for name, value in wanted.items():
        before, now = _first_difference(name, config.get(name), value)
        if before != now:
            raise TesseraError(
                f"--like {folder} has another recipe: its {before}, not {now}; name a run with the same, or leave out "
                "--objective time"
            )
    if any(channel.get("mode") != "sync" for channel in directory.read_plan(folder).get("channels", [])):
        raise TesseraError(f"--like {folder} has another recipe: it did not wait for everything; name one that did")
    steps = summary.get("env_steps")
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise TesseraError(f"--like {folder} has made no steps, by its summary: name a finished run")
    return steps


def _first_difference(name: str, before: Any, now: Any) -> tuple[str, str]:
    """An entry of both, in words; of entries with fields the first that differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        for field in sorted({*before, *now}):
            if before.get(field) != now.get(field):
                return f"{field} = {before.get(field)!r}", f"{now.get(field)!r}"
        return "", ""
    return ("", "") if before == now else (f"{name} = {before!r}", f"{now!r}")
