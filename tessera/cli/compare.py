"""`tessera compare`: one task under several distribution policies, one after the other, in one table."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from typing import Any

from tessera.cli.options import parse, placing
from tessera.cli.train import TrainOptions
from tessera.errors import RunFailed, TesseraError

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


@dataclass
class CompareOptions(TrainOptions):
    """Which policies, how long, and where to."""

    policies: str = ""
    """Policies to run one after the other, between commas: fused,central:workers=2,mode=async,hogwild."""


def compare_command(arguments: list[str]) -> None:
    """Train under each policy, and print the table."""
    world, options, algorithm = parse("compare", arguments, CompareOptions)
    for flag, given in (("--policy", world.policy), ("--actors", world.actors), ("--resume", options.resume)):
        if given:
            raise TesseraError(f"{flag} is not for compare: name policies and their options in --policies")
    from tessera.api import compare

    chosen = dataclasses.asdict(options)
    names = split_policies(chosen.pop("policies"))
    quiet = chosen.pop("quiet")

    def note(line: str) -> None:
        if not quiet:
            print(line, file=sys.stderr, flush=True)

    found = compare(algorithm, world.env, names, note=note, **placing(world), **chosen)
    print(table(found))
    failed = [name for name, summary in found.items() if "failed" in summary]
    if failed:
        raise RunFailed(f"{', '.join(failed)} failed")


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
