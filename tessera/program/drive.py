"""Running a compiled program: segments are called, host Ops are composed in Python, exchanges may wait.

Here is the one loop over a Repeat's iterations. A scheduler may cut the groups of a loop into slices: each of them runs
the same loop, and the scheduler decides which of them advances when (`overlap`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from tessera.program.interfaces import Clock, Endpoint, Port, Slots, Tracer
from tessera.program.nodes import (
    REPORTS,
    SLOTS,
    Collective,
    Deferred,
    Every,
    Node,
    Op,
    Recv,
    Repeat,
    Segment,
    Send,
    effects,
)
from tessera.program.numpy_lowering.lowering import fetch
from tessera.program.overlap.double_buffer import DoubleBuffering
from tessera.program.overlap.ready_batching import ReadyBatching
from tessera.program.overlap.sliced_loop import Context, PlainScheduler, Scheduler, SlicedLoop
from tessera.program.overlap.slot_slices import stack_trees


class OverlapScheduler:
    """Double-buffers environments that were opened so, and acts for ready peers where the port says so."""

    def __init__(self, executor: Executor | None = None) -> None:
        self._schedulers = (DoubleBuffering(executor), ReadyBatching())

    def split(self, context: Context, loop: Repeat, slots: Slots) -> SlicedLoop | None:
        """Cut a loop as the first scheduler does that applies to it."""
        for scheduler in self._schedulers:
            if (sliced := scheduler.split(context, loop, slots)) is not None:
                return sliced
        return None


def drive(
    nodes: tuple[Node, ...],
    slots: Slots,
    port: Port | None = None,
    tracer: Tracer | None = None,
    scheduler: Scheduler | None = None,
    clock: Clock = time.monotonic,
) -> Iterator[Node]:
    """Run nodes on `slots`, in place; yield the exchange wherever one has to wait, and the outer loop at each turn.

    Without a port nothing can be exchanged. Without a scheduler loops overlap acting and stepping where they can.
    """
    split = partial((scheduler or OverlapScheduler()).split, Context(port, tracer, clock))
    return Interpreter(port, tracer, split, clock).run(nodes, slots)


WHOLE = partial(PlainScheduler().split, Context())


@dataclass(frozen=True)
class Interpreter:
    """Runs nodes on slots."""

    port: Endpoint | None = None
    tracer: Tracer | None = None
    split: Callable[[Repeat, Slots], SlicedLoop | None] = WHOLE
    """Cuts a loop into slices; None if it runs as a whole."""
    clock: Clock = time.monotonic

    def run(self, nodes: tuple[Node, ...], slots: Slots) -> Iterator[Node]:
        """Run nodes one after the other; yield an exchange that has to wait, and what is deferred."""
        port, tracer, begin = self.port, self.tracer, 0.0
        for node in nodes:
            if tracer is not None:
                begin = self.clock()
            match node:
                case Segment():
                    call(node, slots)
                    if tracer is not None:  # what a tracer shows has happened
                        jax.block_until_ready([slots[s] for s in effects(node.nodes)[1] if s in slots])
                case Op():
                    slots.update(zip(node.writes, node.function(*[slots[r] for r in node.reads]), strict=True))
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
                case Deferred():
                    yield node
                    continue
                case Repeat():
                    sliced = self.split(node, slots)
                    yield from self._repeat(node, slots) if sliced is None else self._repeat_in_slices(sliced)
                    continue
                case Every():
                    if int(slots["update_clock"]) % node.count == 0:
                        yield from self.run(node.body, slots)
                    continue
                case Collective():
                    raise TypeError(f"a collective outside of a segment: {node}")
            if tracer is not None:
                tracer.span(node, begin)

    def _repeat(self, loop: Repeat, slots: Slots) -> Iterator[Node]:
        """Run a loop's body for each of its iterations, and stack what they give."""
        count = int(slots["count"]) if loop.count is None else loop.count
        stacks: dict[str, list[Any]] = {out: [] for out in loop.stacks.values()}
        for step in range(count):
            slots[loop.index] = np.int32(step)
            yield from self.run(loop.body, slots)
            for slot, out in loop.stacks.items():
                if slot in slots:
                    stacks[out].append(slots.pop(slot))
            if loop.count is None:
                yield loop
        slots.pop(loop.index, None)
        for out, values in stacks.items():
            if values:
                slots[out] = values if out in REPORTS else stack_trees(values, SLOTS[out].stack)

    def _repeat_in_slices(self, sliced: SlicedLoop) -> Iterator[Node]:
        """Run a loop for each of its slices, in the order that its scheduler decides on."""
        turns = [Interpreter(part.port)._repeat(sliced.loop, part.slots) for part in sliced.slices]
        yield from sliced.advance(turns, run_to_end)
        sliced.merge()


PLAIN = Interpreter()
"""Runs what exchanges nothing and is not sliced."""


def run_to_end(nodes: tuple[Node, ...], slots: Slots) -> None:
    """Run nodes that exchange nothing."""
    for node in PLAIN.run(nodes, slots):
        raise TypeError(f"has to wait: {node}")


def call(segment: Segment, slots: Slots) -> None:
    """Call a segment; what it replaces is given up to it."""
    donated = {s: slots.pop(s) for s in segment.donated}
    replaced, fresh = segment.function(donated, {s: slots[s] for s in segment.reads})
    if segment.fetched:
        fresh.update(fetch({s: fresh[s] for s in segment.fetched}))
    slots.update(replaced)
    slots.update(fresh)
