"""Samples of what a replica does: short, rare, bounded, and beside a recording of all."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest
from test_trace import op, written

from tessera.engines.replica import samples
from tessera.engines.replica.samples import MOST_OF_THE_TIME, MOST_SPANS, PERIOD, SAMPLE_SECONDS, SpanSamples
from tessera.engines.replica.trace import TraceFile
from tessera.program.nodes import Recv


class Clock:
    """A clock that is set by hand, beside the one that tells the Unix time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, epoch: float = 1_000_002.0) -> None:
        self.now, self.epoch = 100.0, epoch
        monkeypatch.setattr(samples.time, "time", lambda: self.epoch + self.now)

    def __call__(self) -> float:
        return self.now


def test_samples_begin_together_and_take_a_small_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    recorder = SpanSamples().recorder(0, "env+act/0", clock)
    begun, recorded, was = [], 0.0, False
    for _ in range(120_000):  # twenty minutes of programs that take 10 ms each
        if recorder.active:
            recorded += 0.01
            begun += [] if was else [clock.epoch + clock.now]
            was = True
        else:
            was = False
        clock.now += 0.01
    assert len(begun) >= 100
    assert all(at % PERIOD < 0.02 for at in begun)
    assert recorded / len(begun) == pytest.approx(SAMPLE_SECONDS, abs=0.02)
    assert recorded <= 1200 * (MOST_OF_THE_TIME + 0.002)


def test_a_long_program_is_recorded_to_its_end_and_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    recorder = SpanSamples().recorder(0, "grad/0", clock)
    recorded = 0
    for _ in range(1_000):
        recorded += recorder.active
        clock.now += 2.0
    assert 10 <= recorded <= 1_000 * MOST_OF_THE_TIME + 2  # the first sample has no long pause after it


def test_neither_the_wait_for_the_first_message_nor_compiling_puts_the_next_sample_off(monkeypatch) -> None:
    clock = Clock(monkeypatch)
    recorder = SpanSamples().recorder(0, "grad+apply/0", clock)
    clock.now += PERIOD
    begun: list[float] = []
    was = False
    while len(begun) < 4:
        is_active = recorder.active
        is_first = is_active and not begun
        begun += [clock.now] if is_active and not was else []
        was = is_active
        begin = clock.now
        clock.now += 60.0 if is_first else 1.0  # for the actors that start; later for an unroll
        begin = recorder.span(Recv("experience", 0), begin, waiting=True)
        clock.now += 20.0 if is_first else 0.01  # which compiles it first
        recorder.span(op("grad"), begin)
    pauses = [b - a for a, b in itertools.pairwise(begun)]
    assert pauses[0] < 80.0 + 3 * PERIOD
    assert max(pauses[1:]) < 3 * PERIOD


def test_spans_go_with_the_report_and_the_rest_of_a_crowded_sample_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    recorder = SpanSamples().recorder(0, "env+act/0", clock)
    clock.now += PERIOD
    assert recorder.active
    begin = clock.now
    clock.now += 0.001
    now = recorder.span(op("env"), begin)
    clock.now += 0.002
    recorder.span(Recv("acting", 0), now, waiting=True)
    rows = recorder.flush()
    at = clock.epoch + begin
    assert [row[:2] for row in rows] == [("stepping", ""), ("waiting", "acting")]
    assert [row[2] for row in rows] == pytest.approx([at, at + 0.001])
    assert [row[3] for row in rows] == pytest.approx([0.001, 0.002])
    assert recorder.flush() == []
    for node in [op("env"), op("act")] * MOST_SPANS:
        recorder.span(node, clock.now - 1e-6)
    assert len(recorder.flush()) == MOST_SPANS


def test_all_is_recorded_beside_samples_where_a_trace_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "t"
    recorder = SpanSamples(TraceFile(str(path))).recorder(0, "env+act/0", time.monotonic)
    assert recorder.active
    for node in [op("env"), op("act")] * 10:
        recorder.span(node, time.monotonic())
    recorder.close()
    assert len([event for event in written(path) if event["ph"] == "X"]) == 20
