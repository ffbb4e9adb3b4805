"""Timelines: what every replica did and when, in the trace format of Chrome and Perfetto."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tessera.program.nodes import Node, Op, Recv, Repeat, Segment, Send

ACTIVITIES = {"env": "stepping", "act": "acting", "store": "storing", "grad": "learning", "apply": "learning"}


class Timeline:
    """Spans of one replica, appended to a file of its own, so that a kill loses the last few only."""

    def __init__(self, trace: str, place: int, title: str) -> None:
        self._place = place
        self._names: dict[int, str] = {}
        self._file = part_file(Path(trace), place).open("a", buffering=1 << 16)
        head = {"name": "process_name", "ph": "M", "pid": place, "tid": 0, "args": {"name": title}}
        self._file.write(json.dumps(head) + "\n")

    def span(self, node: Node, begin: float, waiting: bool = False) -> None:
        """Note what a node did from `begin` until now."""
        end = time.monotonic()
        name = "waiting" if waiting else self._names.get(id(node)) or self._name(node)
        event = {"name": name, "ph": "X", "pid": self._place, "tid": 0, "ts": begin * 1e6, "dur": (end - begin) * 1e6}
        if isinstance(node, Send | Recv):
            event["args"] = {"slot": node.slot}
        self._file.write(json.dumps(event) + "\n")

    def flush(self) -> None:
        """Write what is held back."""
        self._file.flush()

    def close(self) -> None:
        """Finish the file."""
        self._file.close()

    def _name(self, node: Node) -> str:
        name = activity(node)
        self._names[id(node)] = name
        return name


def activity(node: Node) -> str:
    """What a node does, in a word: acting, stepping, storing, learning, sending or receiving; with + if several."""
    if isinstance(node, Send):
        return "sending"
    if isinstance(node, Recv):
        return "receiving"
    found = dict.fromkeys(ACTIVITIES[o] for o in ACTIVITIES if o in _operators((node,)))
    return "learning" if "learning" in found else "+".join(found) or "wiring"


def _operators(nodes: tuple[Node, ...]) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, Op):
            found.add(node.operator)
        elif isinstance(node, Segment):
            found |= _operators(node.nodes)
        elif isinstance(node, Repeat):
            found |= _operators(node.body)
    return found


def part_file(trace: Path, place: int) -> Path:
    """Where one replica's spans go until the run is over."""
    return trace.with_name(f"{trace.name}.{place}.part")


def merge_timelines(trace: Path) -> None:
    """Join the replicas' files into one that chrome://tracing and ui.perfetto.dev open."""
    events: list[dict[str, Any]] = []
    parts = sorted(trace.parent.glob(f"{trace.name}.*.part"))
    for part in parts:
        for line in part.read_text().splitlines():
            try:
                events.append(json.loads(line))
            except json.JSONDecodeError:
                continue  # a kill cut it short
    first = min((e["ts"] for e in events if "ts" in e), default=0.0)
    for event in events:
        if "ts" in event:
            event["ts"] -= first
    trace.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}) + "\n")
    for part in parts:
        part.unlink()


def clear_timelines(trace: str) -> None:
    """Remove what an earlier run left behind."""
    path = Path(trace)
    for part in path.parent.glob(f"{path.name}.*.part"):
        part.unlink()
