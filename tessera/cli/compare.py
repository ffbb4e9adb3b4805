"""`tessera compare`: train on one task under several distribution policies, in turn; one table."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from typing import Any

from tessera.cli.options import parse_arguments, plan_arguments, preset_of
from tessera.cli.train import TrainOptions, new_folder
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
"""Heading -> (entry of a run's summary, its format)."""


@dataclass
class CompareOptions(TrainOptions):
    """Which policies to compare, how long to train, and where to put the results."""

    policies: str = ""
    """Policies to run in turn, separated by commas: fused,central:workers=2,mode=async,hogwild."""


def compare_command(arguments: list[str]) -> None:
    """Run `tessera compare`."""
    world, options, algorithm = parse_arguments("compare", arguments, CompareOptions)
    for flag, value in (("--policy", world.policy), ("--actors", world.actors), ("--resume", options.resume)):
        if value:
            raise TesseraError(f"{flag} is not for compare: name policies and their options in --policies")
    from tessera import systems
    from tessera.api import compare

    system = systems.find(arguments[0])[1]
    if system is not None and system.population:
        raise TesseraError(f"{arguments[0]} is a population, and compare trains one run under each policy: name ppo")

    folder = options.run_dir or new_folder(f"compare-{arguments[0]}", world, options.seed)
    train_options = {**dataclasses.asdict(options), "run_dir": folder}
    names = split_policies(train_options.pop("policies"))
    quiet = train_options.pop("quiet")

    def note(line: str) -> None:
        if not quiet:
            print(line, file=sys.stderr, flush=True)

    summaries = compare(
        algorithm,
        world.env,
        names,
        note=note,
        preset=preset_of(world, algorithm),
        system=systems.name_in(arguments[0]),
        **plan_arguments(world),
        **train_options,
    )
    print(table(summaries))
    note(f"results in {folder}")
    failed = [name for name, summary in summaries.items() if "failed" in summary]
    if failed:
        raise RunFailed(f"{', '.join(failed)} failed")


def split_policies(text: str) -> list[str]:
    """Split names of policies at commas; a part with = and without : is one more option of the policy before it."""
    names: list[str] = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        is_option = "=" in part and ":" not in part
        if is_option and not names:
            raise TesseraError(
                f"--policies {text!r} begins with the option {part!r}: name the policy that it belongs to"
            )
        if is_option:
            names[-1] += f",{part}" if ":" in names[-1].removeprefix("py:") else f":{part}"
        else:
            names.append(part)
    if not names:
        raise TesseraError("--policies names none: give one or more, separated by commas")
    if len(set(names)) < len(names):
        raise TesseraError(f"--policies {text!r} names one policy twice")
    return names


def table(summaries: dict[str, dict[str, Any]]) -> str:
    """One row for each policy, and below it why runs failed."""
    rows = [["policy", *COLUMNS]]
    for name, summary in summaries.items():
        rows.append([name, *(_cell(summary.get(key), form) for key, form in COLUMNS.values())])
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = [_line(row, widths) for row in rows]
    return "\n".join([*lines, *(f"{name}: {s['failed']}" for name, s in summaries.items() if "failed" in s)])


def _cell(value: Any, form: str) -> str:
    return "-" if value is None else format(value, form)


def _line(row: list[str], widths: list[int]) -> str:
    """A name aligned to the left, numbers to the right."""
    numbers = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
    return "  ".join([row[0].ljust(widths[0]), *numbers])
