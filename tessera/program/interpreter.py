"""The interpreter of compiled programs: it calls segments and host Ops, and waits for exchanges.

It has the one loop over the iterations of a Repeat. A scheduler may cut the groups of a loop into slices (`overlap`).
Each slice then runs the same loop, and the scheduler decides which slice advances when.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from tessera.program.interfaces import Clock, Endpoint, Port, Tracer
from tessera.program.keys import count_of
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
    Slots,
    effects,
)
from tessera.program.numpy_lowering.lowering import fetch
from tessera.program.overlap.scheduler import OverlapScheduler, PlainScheduler, Scheduler
from tessera.program.overlap.sliced_loop import Context, SlicedLoop
from tessera.program.overlap.slot_slices import stack_trees


def drive(
    nodes: tuple[Node, ...],
    slots: Slots,
    port: Port | None = None,
    tracer: Tracer | None = None,
    scheduler: Scheduler | None = None,
    clock: Clock = time.monotonic,
) -> Iterator[Node]:
    """Run nodes on `slots`, in place; yield an exchange that has to wait, and the outer loop after each iteration.

    Args:
        nodes: the program.
        slots: its values.
        port: what it exchanges through, if anything.
        tracer: records what it does and when.
        scheduler: decides which loops run in slices; by default acting and stepping overlap wherever they can.
        clock: gives the time.
    """
    split = partial((scheduler or OverlapScheduler()).split, Context(port, tracer, clock))
    return Interpreter(port, tracer, split, clock).run(nodes, slots)


WHOLE = partial(PlainScheduler().split, Context())
"""Cuts no loop."""


@dataclass(frozen=True)
class Interpreter:
    """Runs nodes."""

    port: Endpoint | None = None
    tracer: Tracer | None = None
    split: Callable[[Repeat, Slots], SlicedLoop | None] = WHOLE
    """Cuts a loop into slices; None if it runs as a whole."""
    clock: Clock = time.monotonic

    def run(self, nodes: tuple[Node, ...], slots: Slots) -> Iterator[Node]:
        """Run nodes in order; yield an exchange that has to wait, and a node that is deferred to the scheduler."""
        port, tracer, begin = self.port, self.tracer, 0.0
        for node in nodes:
            if tracer is not None:
                begin = self.clock()
            match node:
                case Segment():
                    call(node, slots)
                    if tracer is not None:  # a span ends when the work is done
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
                    if count_of(slots["update_clock"]) % node.count == 0:
                        yield from self.run(node.body, slots)
                    continue
                case Collective():
                    raise TypeError(f"a collective outside of a segment: {node}")
            if tracer is not None:
                tracer.span(node, begin)

    def _repeat(self, loop: Repeat, slots: Slots) -> Iterator[Node]:
        """Run the body of a loop once per iteration, and stack the values of all iterations."""
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
        """Run a loop for each of its slices; they advance in the order of the scheduler."""
        turns = [Interpreter(part.port)._repeat(sliced.loop, part.slots) for part in sliced.slices]
        yield from sliced.advance(turns, run_to_end)
        sliced.merge()


PLAIN = Interpreter()
"""Runs nodes that exchange nothing, and loops as a whole."""


def run_to_end(nodes: tuple[Node, ...], slots: Slots) -> None:
    """Run nodes that exchange nothing."""
    for node in PLAIN.run(nodes, slots):
        raise TypeError(f"cannot wait here: {node}")


def call(segment: Segment, slots: Slots) -> None:
    """Call a segment; it takes its donated slots out and puts new values in."""
    donated = {s: slots.pop(s) for s in segment.donated}
    replaced, fresh = segment.function(donated, {s: slots[s] for s in segment.reads})
    if segment.fetched:
        fresh.update(fetch({s: fresh[s] for s in segment.fetched}))
    slots.update(replaced)
    slots.update(fresh)
