"""`tessera pairs`: which algorithm runs under which policy."""

from __future__ import annotations

from dataclasses import dataclass

from tessera.cli.flags import check_flags, read_flags
from tessera.cli.options import look_in_current_folder
from tessera.errors import unknown_name


@dataclass
class PairsOptions:
    """The table of algorithms and policies: which pairs run, and why the others do not."""

    env: str | None = None
    """Environment to plan for; default: for each algorithm a task that it can play."""
    format: str = "table"
    """table, markdown or json."""


def pairs_command(arguments: list[str]) -> None:
    """Run `tessera pairs`."""
    check_flags(arguments, PairsOptions)
    options = read_flags(PairsOptions, arguments, "tessera pairs")
    look_in_current_folder()
    from tessera.planning.algorithm_policy_pairs import FORMATS, all_pairs, render

    if options.format not in FORMATS:  # before planning every pair
        raise unknown_name("format", options.format, FORMATS)
    print(render(all_pairs(options.env), options.format))
