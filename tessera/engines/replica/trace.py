"""Traces: what every replica did and when, in the format of Chrome and Perfetto."""

from __future__ import annotations

import contextlib
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tessera.program.interfaces import Clock, Tracer
from tessera.program.nodes import WIRING, Every, Node, Op, Recv, Repeat, Segment, Send

ACTIVITIES = {"env": "stepping", "act": "acting", "store": "storing", "grad": "learning", "apply": "learning"}
HELD_SECONDS = 0.5
"""Longest time between two writes: a killed process loses the spans of at most as many seconds."""
GAP = 100e-6
"""Spans of one kind with less time between them, in seconds, are merged."""


@dataclass
class Span:
    """One activity of a replica, by the clock of the run."""

    name: str
    slot: str
    """The slot that is sent, received or waited for."""
    begin: float
    end: float
    thread: int = 0


Row = tuple[str, str, float, float, int]
"""A span as the driver gets it: activity, slot, Unix time of its beginning, seconds, thread."""


class Recorder(Tracer, Protocol):
    """Records what one replica does."""

    @property
    def clock(self) -> Clock:
        """Gives the time that spans begin with."""

    @property
    def active(self) -> bool:
        """Whether the program that begins now is to be recorded: each of its spans then ends when its work is done,
        which keeps work from overlapping."""

    def flush(self) -> list[Row]:
        """Note that the replica reports the updates that it has made; what goes to the driver with them."""

    def close(self) -> None:
        """Write what is left."""


class Recording(Protocol):
    """What replicas of a run are recorded by. It is sent to their processes."""

    def recorder(self, place: int, title: str, clock: Clock) -> Recorder:
        """The recorder of one replica, in its process."""


@dataclass(frozen=True)
class TraceFile:
    """A timeline of every replica, in a file."""

    path: str

    def recorder(self, place: int, title: str, clock: Clock) -> TraceWriter:
        """What appends the spans of one replica."""
        return TraceWriter(self.path, place, title, clock)


class SpanRecorder:
    """Names what ran, and joins spans of one kind that follow each other; a subclass keeps them."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._names: dict[int, str] = {}
        self._last: dict[int, Span] = {}
        """The newest span of each thread."""

    def span(self, node: Node, begin: float, waiting: bool = False, thread: int = 0) -> float:
        """Record that a node ran, or waited, from `begin` until now; returns now. Threads have a row each."""
        end = self.clock()
        name = self._names.get(id(node))
        if name is None:
            name = self._names[id(node)] = activity(node)
        if name:
            slot = node.slot if isinstance(node, Send | Recv) else ""
            self._record(Span("waiting" if waiting else name, slot, begin, end, thread))
        return end

    def keep(self, span: Span) -> None:
        """Keep a span that has ended."""
        raise NotImplementedError

    def _record(self, span: Span) -> None:
        last = self._last.get(span.thread)
        if last is not None and (last.name, last.slot) == (span.name, span.slot) and span.begin - last.end < GAP:
            last.end = span.end
            return
        self._keep_last(span.thread)
        self._last[span.thread] = span

    def _keep_all(self) -> None:
        for thread in list(self._last):
            self._keep_last(thread)

    def _keep_last(self, thread: int) -> None:
        span = self._last.pop(thread, None)
        if span is not None:
            self.keep(span)


class TraceWriter(SpanRecorder):
    """Appends the spans of one replica to a file; its successor goes on in the same file.

    Spans that find no room on the disk are lost: no run ends for the sake of its timeline.
    """

    active = True

    def __init__(self, trace: str, place: int, title: str, clock: Clock = time.monotonic) -> None:
        super().__init__(clock)
        self._place = place
        self._written = clock()
        self._file = part_file(Path(trace), place).open("a", buffering=1 << 16)
        metadata = {"process_name": {"name": title}, "process_sort_index": {"sort_index": place}}
        with contextlib.suppress(OSError):
            self._file.write("\n")  # a kill may have cut the last line short
        for name, value in metadata.items():
            self._write({"name": name, "ph": "M", "args": value})
        self._flush()

    def flush(self) -> list[Row]:
        """Write all spans so far; none goes to the driver."""
        self._keep_all()
        self._flush()
        return []

    def close(self) -> None:
        """Close the file."""
        self._keep_all()
        with contextlib.suppress(OSError):
            self._file.close()

    def keep(self, span: Span) -> None:
        """Write a span."""
        args = {"args": {"slot": span.slot}} if span.slot else {}
        times = {"ts": span.begin * 1e6, "dur": (span.end - span.begin) * 1e6}
        self._write({"name": span.name, "ph": "X", **times, **args}, span.thread)
        if span.end - self._written > HELD_SECONDS:
            self._flush()
            self._written = span.end

    def _write(self, event: dict[str, Any], thread: int = 0) -> None:
        with contextlib.suppress(OSError):
            self._file.write(json.dumps({**event, "pid": self._place, "tid": thread}) + "\n")

    def _flush(self) -> None:
        with contextlib.suppress(OSError):
            self._file.flush()


def activity(node: Node) -> str:
    """The activity of a node: acting, stepping, storing, learning, sending or receiving; joined by + if several.

    Empty for nodes that only pass values on.
    """
    if isinstance(node, Send):
        return "sending"
    if isinstance(node, Recv):
        return "receiving"
    if isinstance(node, Op) and node.kind == WIRING:
        return ""
    activities = dict.fromkeys(ACTIVITIES[o] for o in ACTIVITIES if o in _operators((node,)))
    return "learning" if "learning" in activities else "+".join(activities)


def _operators(nodes: tuple[Node, ...]) -> set[str]:
    operators: set[str] = set()
    for node in nodes:
        if isinstance(node, Op):
            operators.add(node.operator)
        elif isinstance(node, Segment):
            operators |= _operators(node.nodes)
        elif isinstance(node, Repeat | Every):
            operators |= _operators(node.body)
    return operators


def part_file(trace: Path, place: int) -> Path:
    """The file of one replica's spans, until the run is over."""
    return trace.with_name(f"{trace.name}.{place}.part")


def part_files(trace: Path) -> list[Path]:
    """The files of all replicas, in the order of their places."""
    pattern = re.compile(re.escape(trace.name) + r"\.(\d+)\.part")
    files = [(int(match[1]), path) for path in trace.parent.iterdir() if (match := pattern.fullmatch(path.name))]
    return [path for _, path in sorted(files)]


def merge_traces(trace: Path) -> None:
    """Join the replicas' files into one that chrome://tracing and ui.perfetto.dev open."""
    metadata: list[dict[str, Any]] = []
    spans: list[dict[str, Any]] = []
    for part in part_files(trace):
        for line in part.read_text().splitlines():
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                continue  # cut short by a kill
            if event["ph"] == "X":
                spans.append(event)
            elif event not in metadata:  # a restarted replica writes its title again
                metadata.append(event)
    spans.sort(key=lambda span: span["ts"])
    first = spans[0]["ts"] if spans else 0.0
    for span in spans:
        span["ts"], span["dur"] = round(span["ts"] - first, 3), round(span["dur"], 3)
    clear_traces(trace)  # first, so that on a small disk there is room for what they held
    trace.write_text(json.dumps({"traceEvents": [*metadata, *spans], "displayTimeUnit": "ms"}) + "\n")


def clear_traces(trace: Path) -> None:
    """Remove the files of all replicas, such as those of a killed run."""
    for part in part_files(trace):
        part.unlink()
