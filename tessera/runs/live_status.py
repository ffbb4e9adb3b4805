"""What a run is doing right now, as plain data: its replicas, its streams, and samples of what the replicas did."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tessera.engines.base import ReplicaStatus
from tessera.engines.replica.reports import Reports, merge_flows
from tessera.engines.replica.trace import Row
from tessera.graph.plan import Plan

FORMAT = 1
WINDOW_SECONDS = 10.0
"""What waits and rates are taken over, at the least: three reports of a run that reports more seldom."""
MOST_SPANS = 2_000
"""Spans that are kept of one replica."""
MOST_SPANS_IN_ALL = 20_000

OVER = ("finished", "stopped")
"""States of a run that has ended as it should: its replicas are finished, whatever they did last."""


@dataclass(frozen=True)
class Standing:
    """How far a run has come."""

    update: int = 0
    updates: int = 0
    """Updates that the run is to make."""
    env_steps: int = 0
    seconds: float = 0.0
    """Seconds of training, over all resumes."""


@dataclass
class _Block:
    """What happened between two reports."""

    at: float
    seconds: float
    reports: Reports


@dataclass
class LiveStatus:
    """Gathers what a run reports. The run's thread calls `report`, the one that writes files the rest."""

    plan: Plan
    standing: Standing = field(default_factory=Standing)
    _blocks: deque[_Block] = field(default_factory=deque)
    _dropped: dict[str, int] = field(default_factory=dict)
    _spans: dict[int, deque[Row]] = field(default_factory=dict)
    _fresh_spans: bool = False
    _reported: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def report(self, reports: Reports, standing: Standing) -> None:
        """Add what the engine has just reported."""
        now = time.monotonic()
        with self._lock:
            self._blocks.append(_Block(now, now - self._reported, reports))
            self._reported = now
            while len(self._blocks) > 3 and self._blocks[1].at < now - WINDOW_SECONDS:
                self._blocks.popleft()
            for stream, flow in reports.flows.items():
                self._dropped[stream] = self._dropped.get(stream, 0) + flow.dropped
            most = max(20, min(MOST_SPANS, MOST_SPANS_IN_ALL // len(self.plan.places)))
            for place, rows in reports.spans.items():
                self._spans.setdefault(place, deque(maxlen=most)).extend(rows)
                self._fresh_spans = True
            self.standing = standing

    def begin(self, plan: Plan) -> None:
        """Forget what another plan, or the same one before it began again, has reported."""
        with self._lock:
            self.plan = plan
            self._blocks.clear()
            self._spans.clear()
            self._reported = time.monotonic()

    def status(
        self, state: str, why: str, replicas: Sequence[ReplicaStatus], since: dict[int, float]
    ) -> dict[str, Any]:
        """The contents of status.json; `since` says when each replica came into its state, in Unix time."""
        with self._lock:
            blocks, plan, standing = list(self._blocks), self.plan, self.standing
        now = time.monotonic()
        reported = blocks[-1].at if blocks else now
        overdue = max(0.0, now - reported - max((b.seconds for b in blocks), default=0.0))
        covered = max(1e-9, sum(b.seconds for b in blocks) + overdue)
        waited_for = _waited_for(plan, blocks, covered)
        return {
            "format": FORMAT,
            "time": time.time(),
            "state": state,
            "why": why,
            "pid": os.getpid(),
            "host": platform.node(),
            **asdict(standing),
            "replicas": _replicas(plan, state, replicas, since),
            "waited": {fragment: min(1.0, sum(shares.values())) for fragment, shares in waited_for.items()},
            "waited_for": waited_for,
            "streams": self._streams(plan, blocks, covered),
        }

    def spans(self) -> dict[str, Any] | None:
        """The contents of spans.json; None if there are no more than when this was last called."""
        with self._lock:
            if not self._fresh_spans:
                return None
            self._fresh_spans = False
            titles = [title for *_, title in self.plan.places]
            spans = {place: list(rows) for place, rows in sorted(self._spans.items()) if place < len(titles)}
        begin = min(row[2] for rows in spans.values() for row in rows)
        end = max(row[2] + row[3] for rows in spans.values() for row in rows)
        names: dict[str, int] = {}
        slots: dict[str, int] = {"": 0}
        replicas = [
            {
                "place": place,
                "title": titles[place],
                "spans": [
                    [names.setdefault(name, len(names)), slots.setdefault(slot, len(slots)), round(at - begin, 6), s, t]
                    for name, slot, at, s, t in rows
                ],
            }
            for place, rows in spans.items()
        ]
        return {
            "format": FORMAT, "time": time.time(), "begin": begin, "end": end, "names": list(names),
            "slots": list(slots), "replicas": replicas,
        }  # fmt: skip

    def _streams(self, plan: Plan, blocks: list[_Block], covered: float) -> dict[str, Any]:
        out: dict[str, Any] = {}
        flows = merge_flows(block.reports.flows for block in blocks)
        for stream in dict.fromkeys(channel.stream for channel in plan.channels):
            flow = flows.get(stream)
            out[stream] = {
                "bytes_per_second": flow.bytes / covered if flow else 0.0,
                "messages_per_second": flow.messages / covered if flow else 0.0,
                "fill": flow.fill / flow.messages if flow and flow.messages else None,
                "lag_mean": flow.lag_mean if flow and flow.lags else None,
                "lag_max": flow.lag_max if flow and flow.lags else None,
                "dropped": self._dropped.get(stream, 0),
            }
        return out


def _waited_for(plan: Plan, blocks: list[_Block], covered: float) -> dict[str, dict[str, float]]:
    """The share of their time in which replicas of each fragment waited for each stream."""
    out: dict[str, dict[str, float]] = {}
    for placed in plan.fragments if plan.engine != "serial" else ():
        shares = out[placed.title] = {}
        for block in blocks:
            for stream, seconds in block.reports.waits.get(placed.title, {}).items():
                shares[stream] = shares.get(stream, 0.0) + seconds / (placed.replicas * covered)
    return out


def _replicas(
    plan: Plan, state: str, replicas: Sequence[ReplicaStatus], since: dict[int, float]
) -> list[dict[str, Any]]:
    """Every replica; those of an engine that runs all of them in one thread work as long as the run goes on."""
    if not replicas:
        replicas = [ReplicaStatus(place, title, "running", 0) for place, (*_, title) in enumerate(plan.places)]
    if state in OVER:
        replicas = [replace(replica, state="finished", stream="", sending=False) for replica in replicas]
    return [
        {
            "place": replica.place,
            "title": replica.title,
            "fragment": replica.title.rpartition("/")[0],
            "number": int(replica.title.rpartition("/")[2]),
            "state": {"running": "working"}.get(replica.state, replica.state),
            "stream": replica.stream,
            "sending": replica.sending,
            "updates": replica.updates,
            "restarts": replica.restarts,
            "process": replica.process or None,
            "node": replica.node,
            "since": since.get(replica.place, 0.0),
        }
        for replica in replicas
    ]
