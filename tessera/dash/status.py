"""What a run says of itself in live/: its status, marks and spans, brought into the shape that the page expects."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

from tessera.dash.tails import rows_of
from tessera.dash.tree import Tree
from tessera.dash.values import listed, named, number, parse, plain, shaped, text, whole

LIVE = ("starting", "running", "saving", "evaluating")
"""States in which a run is going on."""
SILENCE = 15.0
"""Seconds without a word after which a run is looked for."""
MOST_REPLICAS = 10_000
MOST_MARKS = 10_000
MARKS_BYTES = 4 << 20
SPANS_BYTES = 32 << 20
MOST_SPANS = 2000
"""Spans of one replica that are passed on."""

REPLICA = {
    "place": whole,
    "title": text,
    "fragment": text,
    "number": whole,
    "state": text,
    "stream": text,
    "sending": lambda value: value is True,
    "updates": whole,
    "restarts": whole,
    "process": number,
    "node": text,
    "since": number,
}
STREAM = {
    "bytes_per_second": number,
    "messages_per_second": number,
    "fill": number,
    "lag_mean": number,
    "lag_max": number,
    "dropped": whole,
}
STATUS = {
    "format": whole,
    "time": number,
    "state": text,
    "why": text,
    "pid": whole,
    "host": text,
    "update": whole,
    "updates": whole,
    "env_steps": whole,
    "seconds": number,
    "replicas": lambda value: [shaped(x, REPLICA) for x in listed(value)[:MOST_REPLICAS]],
    "waited": lambda value: shares(value),
    "waited_for": lambda value: {text(name): shares(x) for name, x in named(value).items()},
    "streams": lambda value: {text(name): shaped(x, STREAM) for name, x in named(value).items()},
}
MARK = {
    "time": number,
    "seconds": number,
    "update": number,
    "env_steps": number,
    "kind": text,
    "place": number,
    "text": text,
}


def shares(value: Any) -> dict[str, float]:
    """Name -> a share from 0 to 1."""
    known = ((text(name), number(x)) for name, x in named(value).items())
    return {name: min(max(x, 0.0), 1.0) for name, x in known if x is not None}


def read_status(tree: Tree, name: str, now: float | None = None) -> dict[str, Any] | None:
    """status.json of a run; one that is silent and whose process is gone counts as stopped."""
    data = tree.read(name, "live", "status.json")
    found = None if data is None else parse(data)
    if not isinstance(found, dict):
        return None
    status = shaped(found, STATUS)
    if status["state"] in LIVE and is_silent(status, time.time() if now is None else now):
        status |= {"state": "stopped", "why": f"no sign of life since {moment(status['time'])}"}
    return status


def is_silent(status: dict[str, Any], now: float) -> bool:
    """Whether a run has not written for a while, and its process is not seen on this machine."""
    said = status["time"] or 0.0
    if now - said < SILENCE:
        return False
    return status["host"] != socket.gethostname() or not is_alive(status["pid"], said)


def is_alive(process: int, at: float) -> bool:
    """Whether a process that lived at a moment does so still; another may have got its number since."""
    try:
        ticks = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return False
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK") <= at + 1.0


def moment(seconds: float | None) -> str:
    """A time in words."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds or 0.0))
    except (OverflowError, ValueError, OSError):
        return "an unknown time"


def read_marks(tree: Tree, name: str) -> list[dict[str, Any]]:
    """The newest marks of a run."""
    return marks_of(tree.read(name, "live", "marks.jsonl", at_most=MARKS_BYTES) or b"")


def marks_of(data: bytes) -> list[dict[str, Any]]:
    """Marks in whole lines."""
    return [shaped(row, MARK) for row in rows_of(data)][-MOST_MARKS:]


def read_spans(tree: Tree, name: str) -> dict[str, Any] | None:
    """The newest spans of every replica."""
    data = tree.read(name, "live", "spans.json", at_most=SPANS_BYTES)
    found = None if data is None else parse(data)
    if not isinstance(found, dict):
        return None
    return {
        **{key: number(found.get(key)) for key in ("format", "time", "begin", "end")},
        **{key: [text(x) for x in listed(found.get(key))] for key in ("names", "slots")},
        "replicas": [
            {"place": whole(entry.get("place")), "title": text(entry.get("title")), "spans": spans_of(entry)}
            for entry in map(named, listed(found.get("replicas"))[:MOST_REPLICAS])
        ],
    }


def spans_of(entry: dict[str, Any]) -> list[Any]:
    """Spans of a replica: name, slot, begin, seconds, thread."""
    rows = [x for x in listed(entry.get("spans")) if isinstance(x, list) and len(x) == 5]
    return [x for x in plain(rows[-MOST_SPANS:]) if all(number(part) is not None for part in x[:4])]
