"""Running a compiled program: segments are called, host Ops are composed in Python, exchanges may wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Protocol

import jax
import numpy as np

from tessera.program.nodes import REPORTS, SLOTS, Collective, Every, Node, Op, Recv, Repeat, Segment, Send, effects
from tessera.program.numpy_lowering.lowering import fetch
from tessera.program.overlap.double_buffer import in_halves, run_in_halves
from tessera.program.overlap.ready_batching import PeerPort, Tracer, run_in_shares, shared_out
from tessera.program.overlap.slot_slices import stack

Slots = dict[str, Any]


class Port(PeerPort, Protocol):
    """One replica's end of the channels."""

    def send(self, channel: int, value: Any) -> bool:
        """Hand a value over; False if there is no room yet."""

    def receive(self, channel: int) -> tuple[bool, Any]:
        """Take what has arrived: (whether it has, the value)."""


def drive(
    nodes: tuple[Node, ...], slots: Slots, port: Port | None = None, tracer: Tracer | None = None
) -> Iterator[Node]:
    """Run nodes on `slots`, in place; yield the exchange wherever one has to wait, and the outer loop at each turn.

    Without a port nothing can be exchanged.
    """
    for node in nodes:
        begin = time.monotonic() if tracer is not None else 0.0
        match node:
            case Segment():
                call(node, slots)
                if tracer is not None:  # what a tracer shows has happened
                    jax.block_until_ready([slots[s] for s in effects(node.nodes)[1] if s in slots])
            case Op():
                slots.update(zip(node.writes, node.function(*(slots[r] for r in node.reads)), strict=True))
            case Send():
                assert port is not None
                while not port.send(node.channel, slots[node.slot]):
                    yield node
                    begin = tracer.span(node, begin, waiting=True) if tracer is not None else 0.0
            case Recv():
                assert port is not None
                arrived, value = port.receive(node.channel)
                while not arrived:
                    yield node
                    begin = tracer.span(node, begin, waiting=True) if tracer is not None else 0.0
                    arrived, value = port.receive(node.channel)
                slots[node.slot] = value
            case Repeat() if tracer is None and in_halves(node, slots):
                run_in_halves(node, slots, _run_one)
                continue
            case Repeat() if port is not None and (by := shared_out(node, port)) is not None:
                yield from run_in_shares(node, by, slots, port, tracer)
                continue
            case Repeat():
                yield from _repeat(node, slots, port, tracer)
                continue
            case Every():
                if int(slots["update_clock"]) % node.count == 0:
                    yield from drive(node.body, slots, port, tracer)
                continue
            case Collective():
                raise TypeError(f"a collective outside of a segment: {node}")
        if tracer is not None:
            tracer.span(node, begin)


def _run_one(node: Node, slots: Slots) -> None:
    """Run a node that exchanges nothing."""
    if isinstance(node, Segment):
        call(node, slots)
    elif isinstance(node, Op):
        slots.update(zip(node.writes, node.function(*(slots[r] for r in node.reads)), strict=True))


def call(segment: Segment, slots: Slots) -> None:
    """Call a segment; what it replaces is given up to it."""
    gone = {s: slots.pop(s) for s in segment.donated}
    replaced, fresh = segment.function(gone, {s: slots[s] for s in segment.reads})
    if segment.fetched:
        fresh.update(fetch({s: fresh[s] for s in segment.fetched}))
    slots.update(replaced)
    slots.update(fresh)


def _repeat(node: Repeat, slots: Slots, port: Port | None, tracer: Tracer | None) -> Iterator[Node]:
    count = int(slots["count"]) if node.count is None else node.count
    stacks: dict[str, list[Any]] = {out: [] for s, out in node.stacks.items()}
    for step in range(count):
        slots[node.index] = np.int32(step)
        yield from drive(node.body, slots, port, tracer)
        for s, out in node.stacks.items():
            if s in slots:
                stacks[out].append(slots.pop(s))
        if node.count is None:
            yield node
    slots.pop(node.index, None)
    for out, values in stacks.items():
        if values:
            slots[out] = values if out in REPORTS else stack(values, SLOTS[out].stack)
