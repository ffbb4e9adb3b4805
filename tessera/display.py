"""Progress for people: a live display on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    update: int
    updates: int
    env_steps: int
    steps_per_second: float
    train_return: float
    seconds_left: float


Status = Sequence[tuple[str, str, int]]
"""What every replica is doing: title, state, updates made."""
Streams = Mapping[str, Mapping[str, float]]
"""Lag, waits and drops of each stream that is cut."""


class Display(Protocol):
    """Where progress goes."""

    def begin(self, title: str) -> None:
        """Say what starts."""

    def show(self, progress: Progress, status: Status = (), streams: Streams | None = None) -> None:
        """Say how far it is."""

    def note(self, text: str) -> None:
        """Say one line."""

    def end(self) -> None:
        """Stop displaying."""


class Quiet:
    """Says nothing."""

    def begin(self, title: str) -> None:
        """Nothing."""

    def show(self, progress: Progress, status: Status = (), streams: Streams | None = None) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


class Lines(Quiet):
    """Plain lines, every few seconds."""

    def __init__(self, interval: float = 5.0) -> None:
        self._interval = interval
        self._last = -math.inf

    def begin(self, title: str) -> None:
        """Print the title."""
        print(title, flush=True)

    def show(self, progress: Progress, status: Status = (), streams: Streams | None = None) -> None:
        """Print a line, unless one was printed just now."""
        now = time.monotonic()
        if now - self._last >= self._interval or progress.update >= progress.updates:
            self._last = now
            print(line(progress), flush=True)

    def note(self, text: str) -> None:
        """Print the line."""
        print(text, flush=True)


class Live(Quiet):
    """A bar that moves, with return, steps/s and time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        self._console = Console()
        columns = (
            TextColumn("[bold]{task.percentage:>3.0f}%"),
            BarColumn(bar_width=28),
            TextColumn("[green]return {task.fields[ret]}[/]"),
            TextColumn("{task.fields[steps]} steps"),
            TextColumn("[cyan]{task.fields[speed]} steps/s[/]"),
            TextColumn("{task.fields[left]} left"),
        )
        self._bar: Any = Bar(*columns, console=self._console, transient=False)
        self._task: Any = None

    def begin(self, title: str) -> None:
        """Print the title; the bar appears with the first progress."""
        self._console.print(title, highlight=False, markup=False)

    def show(self, progress: Progress, status: Status = (), streams: Streams | None = None) -> None:
        """Move the bar."""
        fields = {
            "ret": number(progress.train_return),
            "steps": f"{progress.env_steps:,}",
            "speed": f"{progress.steps_per_second:,.0f}",
            "left": clock(progress.seconds_left),
        }
        if self._task is None:
            self._task = self._bar.add_task("", total=progress.updates, **fields)
            self._bar.start()
        self._bar.update(self._task, completed=progress.update, **fields)

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, highlight=False, markup=False)

    def end(self) -> None:
        """Leave the bar as it is."""
        self._bar.stop()


def make_display(quiet: bool) -> Display:
    """Choose by where the output goes."""
    if quiet:
        return Quiet()
    return Live() if sys.stdout.isatty() else Lines()


def line(p: Progress) -> str:
    """Progress as one line."""
    return (
        f"update {p.update}/{p.updates}  steps {p.env_steps:,}  return {number(p.train_return)}  "
        f"{p.steps_per_second:,.0f} steps/s  {clock(p.seconds_left)} left"
    )


def number(x: float) -> str:
    """A return, or a dash before there is one."""
    return "-" if math.isnan(x) else f"{x:.1f}"


def clock(seconds: float) -> str:
    """Seconds as minutes and seconds."""
    if not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
