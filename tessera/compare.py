"""One task under several distribution policies, one after the other, in one table."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tessera import policies
from tessera.errors import RunFailed, TesseraError
from tessera.graph.policy import Policy
from tessera.train import prepare_plan, train

PLACING = ("envs", "groups", "lag", "precision", "engine", "mesh")
COLUMNS: dict[str, tuple[str, str]] = {
    "steps/s": ("steps_per_second", ",.0f"),
    "seconds": ("wall_seconds", ".1f"),
    "to target": ("seconds_to_target", ".1f"),
    "lag mean": ("lag_mean", ".2f"),
    "lag max": ("lag_max", ".2f"),
    "greedy return": ("eval_return_mean", ".1f"),
    "restarts": ("restarts", ".0f"),
}
"""Heading -> what of a run's summary it shows, and how."""


def split_policies(text: str) -> list[str]:
    """Names of policies between commas; a part with = and without : is one more option of the policy before it."""
    names: list[str] = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        more = "=" in part and ":" not in part
        if more and not names:
            raise TesseraError(
                f"--policies {text!r} begins with the option {part!r}: name the policy that it belongs to"
            )
        if more:
            names[-1] += f",{part}" if ":" in names[-1].removeprefix("py:") else f":{part}"
        else:
            names.append(part)
    if not names:
        raise TesseraError("--policies names none: give one or more, separated by commas")
    if len(set(names)) < len(names):
        raise TesseraError(f"--policies {text!r} names one policy twice")
    return names


def compare(
    algorithm: Any,
    env: Any,
    names: Sequence[str],
    *,
    run_dir: str | Path | None = None,
    say: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> dict[str, dict[str, Any]]:
    """Train under each policy in turn; the summary of each run, or why it `failed`.

    All are planned before the first one runs, so that nothing starts if one of them cannot.
    """
    made: dict[str, Policy] = {name: policies.parse(name) for name in names}
    for name, policy in made.items():
        try:
            prepare_plan(algorithm, env, policy, **{k: v for k, v in options.items() if k in PLACING})
        except TesseraError as error:
            raise TesseraError(f"{name}: {error}") from None
    out: dict[str, dict[str, Any]] = {}
    for k, (name, policy) in enumerate(made.items(), 1):
        say(f"{name} ({k} of {len(made)})")
        folder = None if run_dir is None else Path(run_dir) / re.sub(r"[^A-Za-z0-9.=]+", "-", name).strip("-")
        try:
            result = train(algorithm, env, policy, run_dir=folder, **{**options, "quiet": True})
        except RunFailed as error:
            out[name] = {"failed": str(error)}
        else:
            out[name] = result.summary
    return out


def table(summaries: dict[str, dict[str, Any]]) -> str:
    """A row for each policy."""
    rows = [["policy", *COLUMNS]]
    for name, summary in summaries.items():
        rows.append([name, *(_cell(summary.get(key), form) for key, form in COLUMNS.values())])
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = [_line(row, widths) for row in rows]
    return "\n".join([*lines, *(f"{name}: {s['failed']}" for name, s in summaries.items() if "failed" in s)])


def _cell(value: Any, form: str) -> str:
    return "-" if value is None else format(value, form)


def _line(row: list[str], widths: list[int]) -> str:
    """Names to the left, numbers to the right."""
    numbers = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
    return "  ".join([row[0].ljust(widths[0]), *numbers])
