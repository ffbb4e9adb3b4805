"""`tessera plot`: learning curves of runs, as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tessera.cli.flags import check_flags, read_flags
from tessera.errors import TesseraError


@dataclass
class PlotOptions:
    """Draw learning curves of runs."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories."""
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("curves.png")
    """Picture to write."""


def plot_command(arguments: list[str]) -> None:
    """Run `tessera plot`."""
    check_flags(arguments, PlotOptions)
    options = read_flags(PlotOptions, arguments, "tessera plot")
    if not options.runs:
        raise TesseraError("nothing to plot: name one or more run directories")
    from tessera.runs.curves import plot

    plot(list(options.runs), options.output)
    print(f"wrote {options.output}")
