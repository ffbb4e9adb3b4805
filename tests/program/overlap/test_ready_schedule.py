"""When ready batching acts, by a clock that is set by hand: no test here sleeps."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tessera.program.interpreter import drive
from tessera.program.nodes import WIRING, Node, Op, Recv, Repeat, Segment, Send
from tessera.program.overlap.scheduler import PlainScheduler

SECONDS = 2.0
"""How long ready peers wait for the others."""
PEERS = {0: slice(0, 1), 1: slice(1, 3), 2: slice(3, 4)}
TIMESTEPS, ACTIONS = 0, 1


class HandSetClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class FakePort:
    """Messages of each peer, as a test delivers them."""

    def __init__(self) -> None:
        self.arrived: dict[int, deque[np.ndarray]] = defaultdict(deque)
        self.sent: list[tuple[int, list[int]]] = []
        self.full: set[int] = set()

    def deliver(self, *peers: int) -> None:
        for p in peers:
            self.arrived[p].append(np.arange(4)[PEERS[p]] * 10)

    def peer_slices(self, channel: int) -> dict[int, slice]:
        return PEERS

    def batching_seconds(self, channel: int) -> float:
        return SECONDS

    def send_to(self, channel: int, peer: int, value: Any) -> bool:
        if peer in self.full:
            return False
        self.sent.append((peer, value.tolist()))
        return True

    def receive_from(self, channel: int, peer: int) -> tuple[bool, Any]:
        return (True, self.arrived[peer].popleft()) if self.arrived[peer] else (False, None)

    def send(self, channel: int, value: Any) -> bool:
        return all(self.send_to(channel, p, value[cut]) for p, cut in PEERS.items())

    def receive(self, channel: int) -> tuple[bool, Any]:
        found = [self.receive_from(channel, p)[1] for p in PEERS]
        return True, np.concatenate(found)


class Acted:
    """A segment that adds the memory and the step; notes for whom it was run."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        """Memory, by which groups are known, of each call."""

    def __call__(self, donated: dict[str, Any], seen: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        memory = donated["memory"]
        self.groups.append(memory.tolist())
        return {"memory": memory}, {"actions": seen["timesteps"] + memory + seen["t"]}


def program(acted: Acted, steps: int) -> tuple[Node, ...]:
    segment = Segment((), acted, ("timesteps", "t"), ("memory",), lowered=SimpleNamespace(acting="numpy"))
    body = (
        Recv("timesteps", TIMESTEPS),
        segment,
        Send("actions", ACTIONS),
        Op("act", lambda actions: (actions,), ("actions",), ("transition",), WIRING),
    )
    return (Repeat("t", steps, body, {"transition": "trajectory"}),)


class Run:
    """A loop under way."""

    def __init__(self, steps: int = 1, **options: Any) -> None:
        self.port, self.clock, self.acted = FakePort(), HandSetClock(), Acted()
        self.slots: dict[str, Any] = {"memory": np.arange(4)}
        self.turns: Iterator[Node] = drive(
            program(self.acted, steps), self.slots, self.port, clock=self.clock, **options
        )

    def waits_for(self, after: float, *arrived: int) -> Recv:
        """Let time pass and messages arrive; what the loop waits for then."""
        self.clock.now += after
        self.port.deliver(*arrived)
        node = next(self.turns)
        assert isinstance(node, Recv)
        return node

    def ends(self, after: float, *arrived: int) -> None:
        self.clock.now += after
        self.port.deliver(*arrived)
        assert next(self.turns, None) is None

    @property
    def batches(self) -> list[list[int]]:
        return self.acted.groups


def test_a_batch_is_acted_for_at_once_when_all_are_ready():
    run = Run()
    assert run.waits_for(0.0).timeout is None  # none is ready: there is no hurry
    run.ends(0.0, 0, 1, 2)
    assert run.batches == [[0], [1, 2], [3]]
    assert run.slots["trajectory"].tolist() == [[0], [11], [22], [33]]


def test_the_first_that_is_ready_waits_for_the_others_so_long_and_no_longer():
    run = Run()
    run.waits_for(0.0)
    assert run.waits_for(0.0, 1).timeout == pytest.approx(SECONDS)
    assert run.waits_for(1.5).timeout == pytest.approx(SECONDS - 1.5)
    assert run.batches == []
    assert run.waits_for(0.25, 0).timeout == pytest.approx(SECONDS - 1.75)  # a second one does not prolong it
    assert run.batches == []
    assert run.waits_for(0.25).timeout is None  # both were acted for, and there is nothing to hurry for
    assert run.batches == [[0], [1, 2]]
    run.ends(50.0, 2)
    assert run.batches == [[0], [1, 2], [3]]


def test_a_slice_that_was_acted_for_is_sent_its_actions_and_goes_on_to_its_next_step():
    run = Run(steps=2)
    run.waits_for(0.0, 0)
    run.waits_for(SECONDS)
    assert run.port.sent == [(0, [0])]
    run.waits_for(1.0, 0)
    run.waits_for(SECONDS)
    assert run.port.sent == [(0, [0]), (0, [1])]  # at its second step, while the others are at their first
    run.ends(0.0, 1, 1, 2, 2)
    assert run.slots["trajectory"].tolist() == [[0, 1], [11, 12], [22, 23], [33, 34]]
    assert run.slots["memory"].tolist() == [0, 1, 2, 3]


def test_a_receiver_without_room_is_waited_for():
    run = Run()
    run.port.full.add(1)
    run.port.deliver(0, 1, 2)
    waits = next(run.turns)
    assert isinstance(waits, Send)
    assert [peer for peer, _ in run.port.sent] == [0, 2]
    run.port.full.clear()
    run.ends(0.0)
    assert [peer for peer, _ in run.port.sent] == [0, 2, 1]


def test_the_plain_scheduler_runs_the_same_loop_as_a_whole():
    run = Run(scheduler=PlainScheduler())
    run.ends(0.0, 0, 1, 2)
    assert run.batches == [[0, 1, 2, 3]]
    assert run.slots["trajectory"].tolist() == [[0], [11], [22], [33]]


def test_spans_are_recorded_by_the_clock_that_is_handed_in():
    spans: list[tuple[str, float, bool]] = []

    class Recorder:
        def span(self, node: Node, begin: float, waiting: bool = False) -> float:
            spans.append((type(node).__name__, begin, waiting))
            return begin

    run = Run(tracer=Recorder())
    run.waits_for(0.0)
    run.ends(7.0, 0, 1, 2)
    assert spans == [("Recv", 100.0, True), ("Segment", 107.0, False)]
