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
    """Run directories; one with several seeds is one curve."""
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("curves.png")
    """Picture to write: .png, .svg or .pdf."""
    metric: str | None = None
    """Metric to draw, such as loss or eval/return_mean; default: returns of training, or of evaluations against an
    opponent."""
    by: str = "steps"
    """What it is drawn over: steps, seconds or updates."""
    smooth: int = 1
    """Neighbouring rows whose mean is drawn."""
    merge_seeds: bool = False
    """Draw runs that differ in their seed only as one curve: the interquartile mean with its 95 % band."""


def plot_command(arguments: list[str]) -> None:
    """Run `tessera plot`."""
    check_flags(arguments, PlotOptions)
    options = read_flags(PlotOptions, arguments, "tessera plot")
    if not options.runs:
        raise TesseraError("nothing to plot: name one or more run directories")
    from tessera.runs.curves import Look, plot

    look = Look(options.metric, options.by, options.smooth, options.merge_seeds)
    plot(list(options.runs), options.output, look=look)
    print(f"wrote {options.output}")
