"""Progress of a run: a live display on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tessera.algorithms.contract import Schedule
from tessera.engines.base import ReplicaStatus
from tessera.graph.plan import Plan
from tessera.support.machine import cores


@dataclass(frozen=True)
class Progress:
    """How far a run has come."""

    update: int
    updates: int
    env_steps: int
    steps_per_second: float
    """Nan before it can be measured."""
    train_return: float
    seconds_left: float
    eval_return: float = math.nan
    """Mean return of the newest greedy evaluation."""
    predicted: float = math.nan
    """Steps per second that were predicted; nan if none were."""


Status = Sequence[ReplicaStatus]
"""What every replica is doing."""
Streams = Mapping[str, Mapping[str, float]]
"""Lag, waits and drops of each cut stream, over the newest updates."""
STATES = 3
"""States of a fragment's replicas that are shown; replicas in others are only counted."""


class Display(Protocol):
    """Where progress goes."""

    def begin(self, title: str) -> None:
        """Show the title of the run."""

    def show(self, progress: Progress, status: Status = (), streams: Streams | None = None) -> None:
        """Show how far the run has come."""

    def note(self, text: str) -> None:
        """Show one line."""

    def note_evaluation(self, text: str) -> None:
        """Show one line that tells of greedy episodes during training."""

    def end(self) -> None:
        """Stop displaying."""


class Quiet:
    """Shows nothing."""

    def begin(self, title: str) -> None:
        """Show nothing."""

    def show(self, progress: Progress, status: Status = (), streams: Streams | None = None) -> None:
        """Show nothing."""

    def note(self, text: str) -> None:
        """Show nothing."""

    def note_evaluation(self, text: str) -> None:
        """Show nothing."""

    def end(self) -> None:
        """Do nothing."""


class Lines(Quiet):
    """Plain lines, every few seconds."""

    def __init__(self, interval: float = 5.0) -> None:
        self._interval = interval
        self._last = -math.inf
        self._dropped: Counter[str] = Counter()

    def begin(self, title: str) -> None:
        """Print the title."""
        print(title, flush=True)

    def show(self, progress: Progress, status: Status = (), streams: Streams | None = None) -> None:
        """Print a line if the interval is over, or the run."""
        count_drops(self._dropped, streams)
        now = time.monotonic()
        if now - self._last >= self._interval or progress.update >= progress.updates:
            self._last = now
            print(line(progress, streams, self._dropped), flush=True)

    def note(self, text: str) -> None:
        """Print the line."""
        print(text, flush=True)

    note_evaluation = note


class Live(Quiet):
    """A progress bar with return, steps/s and time left; below it the states of fragments and streams."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live as Screen
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        self._console = Console()
        columns = (
            TextColumn("[bold]{task.percentage:>3.0f}%"),
            BarColumn(bar_width=28),
            TextColumn("[green]return {task.fields[ret]}[/]"),
            TextColumn("{task.fields[steps]} steps"),
            TextColumn("[cyan]{task.fields[speed]}[/]"),
            TextColumn("{task.fields[left]}"),
        )
        self._bar: Any = Bar(*columns, console=self._console, auto_refresh=False)
        self._task: Any = None
        self._status: Status = ()
        self._streams: Streams = {}
        self._dropped: Counter[str] = Counter()
        self._screen: Any = Screen(get_renderable=self._render, console=self._console, auto_refresh=False)

    def begin(self, title: str) -> None:
        """Print the title; the bar appears with the first progress."""
        self._console.print(title, highlight=False, markup=False)

    def show(self, progress: Progress, status: Status = (), streams: Streams | None = None) -> None:
        """Move the bar and redraw what is below it; the serial engine, which has no replicas, gets the bar alone."""
        fields = {
            "ret": returns(progress),
            "steps": f"{progress.env_steps:,}",
            "speed": rate(progress),
            "left": time_left(progress),
        }
        count_drops(self._dropped, streams)
        self._status, self._streams = tuple(status), (streams or {}) if status else {}
        if self._task is None:
            self._task = self._bar.add_task("", total=progress.updates, **fields)
            self._screen.start()
        self._bar.update(self._task, completed=progress.update, **fields)
        self._screen.refresh()

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, highlight=False, markup=False)

    note_evaluation = note

    def end(self) -> None:
        """Leave the bar and the streams on the screen, without the states of replicas."""
        self._status = ()
        self._screen.stop()

    def _render(self) -> Any:
        from rich.console import Group

        fragments = table(("fragment", "updates", "state"), fragment_rows(self._status))
        heads = ("stream", "lag mean/max", "full", "waited", "dropped")
        streams = table(heads, stream_rows(self._streams, self._dropped))
        return Group(self._bar.get_renderable(), *(part for part in (fragments, streams) if part.row_count))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    """A table without borders; on a narrow terminal its last column wraps."""
    from rich.table import Table
    from rich.text import Text

    columns = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for head in heads:
        columns.add_column(head, no_wrap=head != heads[-1])
    for row in rows:
        columns.add_row(*(Text(cell) for cell in row))
    return columns


def fragment_rows(status: Status) -> list[tuple[str, str, str]]:
    """For each fragment: title and replicas, fewest and most updates made, replicas in each state."""
    fragments: dict[str, list[tuple[str, int]]] = {}
    for replica in status:
        fragments.setdefault(replica.title.rpartition("/")[0], []).append((replica.in_words, replica.updates))
    rows = []
    for title, replicas in fragments.items():
        fewest, most = min(n for _, n in replicas), max(n for _, n in replicas)
        made = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
        count = f" × {len(replicas)}" if len(replicas) > 1 else ""
        rows.append((title + count, made, states([state for state, _ in replicas])))
    return rows


def states(names: Sequence[str]) -> str:
    """Count replicas by state, the most common first; replicas in rare states are counted together."""
    counts = Counter(names).most_common()
    if len(counts) == 1:
        return names[0]
    shown = ", ".join(f"{n} {state}" for state, n in counts[:STATES])
    rest = sum(n for _, n in counts[STATES:])
    return f"{shown} … and {rest} more" if rest else shown


def stream_rows(streams: Streams, dropped: Mapping[str, int]) -> list[tuple[str, str, str, str, str]]:
    """For each stream: name, lag, how full its queue is, seconds waited for it, messages dropped so far."""
    return [
        (
            name,
            lag(flow) or "-",
            f"{flow['fill']:.0%}" if flow.get("messages") else "-",
            f"{flow.get('wait_seconds', 0.0):.1f} s",
            f"{dropped.get(name, 0):,}",
        )
        for name, flow in sorted(streams.items())  # streams are reported in any order
    ]


def count_drops(dropped: Counter[str], streams: Streams | None) -> None:
    """Add the newest drops of each stream."""
    for name, flow in (streams or {}).items():
        dropped[name] += int(flow.get("dropped", 0))


def lag(flow: Mapping[str, float]) -> str:
    """Mean and maximum lag in updates; empty for a stream without versions."""
    return f"{flow['lag_mean']:.1f}/{flow['lag_max']:.3g}" if "lag_mean" in flow else ""


def make_display(quiet: bool) -> Display:
    """Choose a display by where the output goes."""
    if quiet:
        return Quiet()
    return Live() if sys.stdout.isatty() else Lines()


def line(p: Progress, streams: Streams | None = None, dropped: Mapping[str, int] | None = None) -> str:
    """Progress as one line; of streams, only those that lag or have dropped messages."""
    parts = [
        f"update {p.update}/{p.updates}",
        f"steps {p.env_steps:,}",
        f"return {returns(p)}",
        rate(p),
        time_left(p),
    ]
    for name, flow in sorted((streams or {}).items()):
        late = [f"lag {lag(flow)}"] if flow.get("lag_max") else []
        lost = [f"{dropped[name]:,} dropped"] if dropped and dropped.get(name) else []
        if late or lost:
            parts.append(f"{name} {', '.join(late + lost)}")
    return "  ".join(filter(None, parts))


def rate(p: Progress) -> str:
    """Steps per second, beside the predicted ones; empty before they can be measured."""
    if math.isnan(p.steps_per_second):
        return ""
    predicted = "" if math.isnan(p.predicted) else f" (predicted {p.predicted:,.0f})"
    return f"{p.steps_per_second:,.0f} steps/s{predicted}"


def time_left(p: Progress) -> str:
    """How long the run still takes; empty before that is known."""
    return f"{clock(p.seconds_left)} left" if math.isfinite(p.seconds_left) else ""


def returns(p: Progress) -> str:
    """The training return, and that of the newest greedy evaluation if there was one."""
    return number(p.train_return) + ("" if math.isnan(p.eval_return) else f" (greedy {number(p.eval_return)})")


def number(x: float) -> str:
    """A return, or a dash before there is one."""
    return "-" if math.isnan(x) else f"{x:.1f}"


def clock(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def steps_of_update(schedule: Schedule, plan: Plan) -> str:
    """How many environment steps one update is, and how many come before the first."""
    warmup = schedule.warmup * schedule.steps * plan.envs
    before = f", and {warmup:,} come before the first" if warmup else ""
    return f"an update is {round(schedule.steps * plan.envs_per_update):,} steps{before}"


def rounding_hint(schedule: Schedule, plan: Plan, steps: int, updates: int) -> str:
    """What is said of steps that whole updates do not divide; empty if they do."""
    planned = math.ceil(schedule.steps * (schedule.warmup * plan.envs + updates * plan.envs_per_update))
    return "" if planned == steps else f"{steps:,} steps become {planned:,}: {steps_of_update(schedule, plan)}"


def virtual_devices_hint(plan: Plan) -> str:
    """What to expect of more CPU devices than there are cores, before a minute of compiling; empty if there are not."""
    most = max((f.devices * f.model for f in plan.fragments if f.platform == "cpu"), default=1)
    if most <= cores():
        return ""
    return (
        f"{most} CPU devices share {cores()} cores: this tries a mesh out and is no faster than one device; "
        "until the first update the program is compiled for all of them, which can take a minute or two"
    )
