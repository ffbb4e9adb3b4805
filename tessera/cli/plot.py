"""`tessera plot`: learning curves of runs, or the lineage of a population, as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tessera.cli.flags import check_flags, read_flags
from tessera.errors import TesseraError


@dataclass
class PlotOptions:
    """Draw learning curves of runs, or the lineage of a population."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories; one with several seeds is one curve."""
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """Picture to write: .png, .svg or .pdf; default: curves.png, or lineage.png."""
    metric: str | None = None
    """Metric to draw, such as loss or eval/return_mean; default: returns of training, or of evaluations against an
    opponent."""
    by: str = "steps"
    """What it is drawn over: steps, seconds or updates."""
    smooth: int = 1
    """Neighbouring rows whose mean is drawn."""
    merge_seeds: bool = False
    """Draw runs that differ in their seed only as one curve: the interquartile mean with its 95 % band."""
    lineage: bool = False
    """Draw who goes on from whom in a population, and with which values of what is tuned."""


def plot_command(arguments: list[str]) -> None:
    """Run `tessera plot`."""
    check_flags(arguments, PlotOptions)
    options = read_flags(PlotOptions, arguments, "tessera plot")
    if not options.runs:
        raise TesseraError("nothing to plot: name one or more run directories")
    if options.lineage:
        check_lineage(options)
    from tessera.runs.curves import Look, plot
    from tessera.runs.lineage_picture import plot_lineage

    output = options.output or Path("lineage.png" if options.lineage else "curves.png")
    look = Look(options.metric, options.by, options.smooth, options.merge_seeds)
    if options.lineage:
        plot_lineage(options.runs[0], output, look)
    else:
        plot(list(options.runs), output, look=look)
    print(f"wrote {output}")


def check_lineage(options: PlotOptions) -> None:
    """Refuse what makes no sense for a lineage."""
    if len(options.runs) > 1:
        raise TesseraError(f"--lineage draws one population, not {len(options.runs)}: name one run directory")
    if options.merge_seeds:
        raise TesseraError("--lineage draws each member of a population by itself: leave out --merge-seeds")
