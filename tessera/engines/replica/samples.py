"""Samples of what replicas do: their spans for a moment every few seconds, sent to the driver with their reports."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from tessera.engines.replica.trace import Recorder, Recording, Row, Span, SpanRecorder
from tessera.program.interfaces import Clock
from tessera.program.nodes import Node

PERIOD = 10.0
"""Seconds from one sample to the next. They begin at multiples of it in Unix time, so those of all replicas meet."""
SAMPLE_SECONDS = 0.1
"""How long a sample lasts, at the least: the program that is running is recorded to its end."""
MOST_OF_THE_TIME = 1 / 50
"""The largest share of a replica's time in which its work is recorded, since work does not overlap meanwhile."""
MOST_SPANS = 500
"""Spans of one sample; the rest of it is left out."""


@dataclass(frozen=True)
class SpanSamples:
    """Takes samples of every replica, beside another recording if there is one."""

    whole: Recording | None = None

    def recorder(self, place: int, title: str, clock: Clock) -> SampleRecorder:
        """What takes the samples of one replica."""
        return SampleRecorder(clock, None if self.whole is None else self.whole.recorder(place, title, clock))


class SampleRecorder(SpanRecorder):
    """Takes samples of one replica."""

    def __init__(self, clock: Clock = time.monotonic, whole: Recorder | None = None) -> None:
        """`whole` records all that this one does not."""
        super().__init__(clock)
        self._whole = whole
        self._rows: list[Row] = []
        self._epoch = time.time() - clock()
        """Unix time when the clock was 0."""
        self._next = self._following(clock())
        """When the next sample may begin, by the clock."""
        self._begun = math.nan
        """When the sample that is being taken began; nan between two."""
        self._waited = 0.0
        """Seconds of that sample in which the replica waited, which costs nothing."""
        self._is_first = True
        """Whether that sample is the first one: programs are compiled in it, once."""

    @property
    def active(self) -> bool:
        """Whether the program that begins now is to be recorded."""
        return self._sampling() or (self._whole is not None and self._whole.active)

    def span(self, node: Node, begin: float, waiting: bool = False, thread: int = 0) -> float:
        """Record that a node ran, or waited, from `begin` until now; returns now."""
        if self._whole is not None and self._whole.active:
            self._whole.span(node, begin, waiting)
        if math.isnan(self._begun):
            return self.clock()
        now = super().span(node, begin, waiting, thread)
        self._waited += now - begin if waiting else 0.0
        return now

    def keep(self, span: Span) -> None:
        """Keep a span until the next report."""
        if len(self._rows) < MOST_SPANS:
            begin, seconds = round(self._epoch + span.begin, 6), round(span.end - span.begin, 6)
            self._rows.append((span.name, span.slot, begin, seconds, span.thread))

    def flush(self) -> list[Row]:
        """Note that the replica reports; what was sampled since the last report, for the driver."""
        self._keep_all()
        if self._whole is not None:
            self._whole.flush()
        rows, self._rows = self._rows, []
        return rows

    def close(self) -> None:
        """Write what the other recorder holds."""
        if self._whole is not None:
            self._whole.close()

    def _sampling(self) -> bool:
        """Whether a sample is being taken, or begins now."""
        now = self.clock()
        if math.isnan(self._begun):
            if now >= self._next:
                self._begun, self._waited = now, 0.0
        elif now >= self._begun + SAMPLE_SECONDS:
            worked = SAMPLE_SECONDS if self._is_first else max(0.0, now - self._begun - self._waited)
            self._next = self._following(now + worked * (1 / MOST_OF_THE_TIME - 1))
            self._begun, self._is_first = math.nan, False
            self._epoch = time.time() - now
        return not math.isnan(self._begun)

    def _following(self, when: float) -> float:
        """The first time from `when` on at which samples begin, by the clock."""
        return math.ceil((self._epoch + when) / PERIOD) * PERIOD - self._epoch
