"""Acting for whichever environments are ready, while others are still stepping.

The loop over the steps of an unroll is run once for each share of the groups (those of one environment server), each
at its own step. Actions are chosen for all shares that are ready together, as soon as all are or the first of them has
waited long enough. Environments are independent, and random numbers belong to a step of an environment, so who was
ready when changes nothing but the time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from tessera.program.compile import trace
from tessera.program.nodes import SLOTS, Node, Op, Recv, Repeat, Segment, Send, effects
from tessera.program.numpy_lowering.lowering import fetch
from tessera.program.overlap.slot_slices import cut_out, joined, stack, whole

Slots = dict[str, Any]


class PeerPort(Protocol):
    """The end of a channel at which each peer is dealt with by itself."""

    def peer_slices(self, channel: int) -> dict[int, slice] | None:
        """The groups of each peer, among those of this replica; None where all peers are waited for."""

    def batching_seconds(self, channel: int) -> float:
        """Seconds that who is ready waits for the others."""

    def send_to(self, channel: int, peer: int, value: Any) -> bool:
        """Hand a value over; False if there is no room yet."""

    def receive_from(self, channel: int, peer: int) -> tuple[bool, Any]:
        """Take what has arrived: (whether it has, the value)."""


class Tracer(Protocol):
    """Where it is noted what happened when."""

    def span(self, node: Node, begin: float, waiting: bool = False) -> float:
        """Note what a node did, or that it waited, from `begin` until now, by the monotonic clock; returns now."""


@dataclass
class Share:
    """The loop as one peer's groups see it."""

    peer: int
    cut: slice
    slots: Slots
    stacks: dict[str, list[Any]] = field(default_factory=dict)


def shared_out(node: Repeat, port: PeerPort) -> Recv | None:
    """The exchange by whose peers a loop is shared out, if it is."""
    answered = any(isinstance(inner, Send) for inner in node.body)
    for inner in node.body if answered else ():
        if isinstance(inner, Recv) and port.peer_slices(inner.channel) is not None:
            return inner
    return None


def run_in_shares(node: Repeat, by: Recv, slots: Slots, port: PeerPort, tracer: Tracer | None) -> Iterator[Node]:
    """Run a loop; yield an exchange wherever all that can be done is to wait."""
    cuts = port.peer_slices(by.channel)
    assert cuts is not None
    reads, writes = effects(node.body)
    called = [s for inner in node.body if isinstance(inner, Segment) for s in (*inner.reads, *inner.donated)]
    mine = [s for s in reads | writes if s in slots and s not in called]
    shares = [Share(p, cut, {s: cut_out(s, slots[s], cut) for s in mine}) for p, cut in cuts.items()]
    acting = Acting(node, slots, shares)
    yield from _schedule(node, shares, acting, port, port.batching_seconds(by.channel), tracer)
    acting.finish()
    slots.update({s: whole(s, [x.slots[s] for x in shares]) for s in mine if s in writes and s in shares[0].slots})
    for s, out in node.stacks.items():
        if out in shares[0].stacks:
            slots.pop(s, None)
            slots[out] = joined([stack(x.stacks[out], SLOTS[out].stack) for x in shares], SLOTS[out].axis)


def _schedule(
    node: Repeat, shares: list[Share], acting: Acting, port: PeerPort, patience: float, tracer: Tracer | None
) -> Iterator[Node]:
    """Let shares go on as far as they can, and act for those that are ready."""
    turns = [_turns(node, share, port) for share in shares]
    at: dict[int, Node] = {}
    """What each share that has not ended is at."""

    def go_on(numbers: list[int]) -> None:
        for k in numbers:
            try:
                at[k] = next(turns[k])
            except StopIteration:
                at.pop(k, None)

    go_on(list(range(len(shares))))
    first = time.monotonic()  # when the first of those that are ready was
    while at:
        waiting = [k for k, n in at.items() if not isinstance(n, Segment)]
        ready = [k for k, n in at.items() if isinstance(n, Segment)]
        left = first + patience - time.monotonic() if ready else None
        if ready and (not waiting or (left is not None and left <= 0)):
            segment = at[ready[0]]
            assert isinstance(segment, Segment)
            begin = time.monotonic()
            acting.act(segment, [shares[k] for k in ready])
            if tracer is not None:
                tracer.span(segment, begin)
            go_on(ready)
        else:
            stuck = at[waiting[0]]
            begin = time.monotonic()
            yield replace(stuck, within=left) if isinstance(stuck, Recv) else stuck
            if tracer is not None:
                tracer.span(stuck, begin, waiting=True)
        if not ready:
            first = time.monotonic()
        go_on([k for k, n in at.items() if not isinstance(n, Segment)])


def _turns(node: Repeat, share: Share, port: PeerPort) -> Iterator[Node]:
    """Run one share's loop; yield an exchange that has to wait, and a segment that is to be called meanwhile."""
    assert node.count is not None
    slots = share.slots
    for step in range(node.count):
        slots[node.index] = np.int32(step)
        for inner in node.body:
            match inner:
                case Segment():
                    yield inner
                case Op():
                    slots.update(zip(inner.writes, inner.function(*(slots[r] for r in inner.reads)), strict=True))
                case Send():
                    while not port.send_to(inner.channel, share.peer, slots[inner.slot]):
                        yield inner
                case Recv():
                    arrived, value = port.receive_from(inner.channel, share.peer)
                    while not arrived:
                        yield inner
                        arrived, value = port.receive_from(inner.channel, share.peer)
                    slots[inner.slot] = value
                case _:
                    raise TypeError(f"cannot be run for some environments only: {inner}")
        for s, out in node.stacks.items():
            if s in slots:
                share.stacks.setdefault(out, []).append(slots.pop(s))
    slots.pop(node.index)


class Acting:
    """Calls segments for some of the shares: each by itself in NumPy, or all that are ready at once, compiled."""

    def __init__(self, node: Repeat, slots: Slots, shares: list[Share]) -> None:
        self._node, self._slots, self._shares = node, slots, shares
        self._apart: dict[str, None] = {}
        """Slots that were taken apart, so that each share has its own."""

    def act(self, segment: Segment, ready: list[Share]) -> None:
        """Call a segment for some shares."""
        if segment.lowered is not None and self._small(segment, ready[0]):
            self._take_apart(segment)
            for share in ready:
                gone = {s: share.slots.pop(s) for s in segment.donated}
                replaced, fresh = segment.function(gone, {s: share.slots[s] for s in segment.reads})
                share.slots.update({**replaced, **fresh})
            return
        self.finish()
        if segment.partial is None:
            segment.partial = Partial(segment, self._node.index)
        segment.partial(self._slots, ready)

    def finish(self) -> None:
        """Put together what was taken apart."""
        for s in self._apart:
            self._slots[s] = whole(s, [share.slots.pop(s) for share in self._shares])
        self._apart.clear()

    def _small(self, segment: Segment, share: Share) -> bool:
        def own(slot: str) -> Any:
            return share.slots[slot] if slot in share.slots else cut_out(slot, self._slots[slot], share.cut)

        return segment.lowered.small({s: own(s) for s in segment.donated}, {s: own(s) for s in segment.reads})

    def _take_apart(self, segment: Segment) -> None:
        for s in (*segment.donated, *segment.reads):
            if s not in self._shares[0].slots and s in self._slots:
                self._apart[s] = None
                for share in self._shares:
                    share.slots[s] = cut_out(s, self._slots[s], share.cut)


class Partial:
    """A segment compiled for some of the groups: their rows are taken from what holds all, and put back there."""

    def __init__(self, segment: Segment, index: str) -> None:
        self._segment, self._index = segment, index
        self._fetched = segment.fetched or (segment.lowered.fetched if segment.lowered is not None else ())
        self._function = jax.jit(self._run, donate_argnums=0)

    def __call__(self, slots: Slots, ready: list[Share]) -> None:
        """Act for the shares in `ready`; `slots` holds what belongs to all groups."""
        segment = self._segment
        gone = {s: slots.pop(s) for s in segment.donated}
        own = [s for s in segment.reads if s in ready[0].slots and s != self._index]
        held = {s: slots[s] for s in segment.reads if s not in own and s != self._index}
        groups = _groups({**gone, **held})
        places = np.concatenate([np.arange(*share.cut.indices(groups), dtype=np.int32) for share in ready])
        sizes = [len(range(*share.cut.indices(groups))) for share in ready]
        steps = np.repeat(np.asarray([share.slots[self._index] for share in ready], np.int32), sizes)
        more = _room(len(places), groups) - len(places)  # few sizes are compiled, and the rest is thrown away
        given = {s: _padded(joined([x.slots[s] for x in ready], SLOTS[s].axis), more, SLOTS[s].axis) for s in own}
        padded = np.pad(places, (0, more), constant_values=groups), np.pad(steps, (0, more))
        replaced, fresh = self._function(gone, held, given, *padded)
        slots.update(replaced)
        fresh |= fetch({s: fresh[s] for s in self._fetched})
        edges = np.cumsum([0, *sizes])
        for k, share in enumerate(ready):
            cut = slice(int(edges[k]), int(edges[k + 1]))
            share.slots.update({s: cut_out(s, value, cut) for s, value in fresh.items()})

    def _run(self, gone: Slots, held: Slots, given: Slots, places: jax.Array, steps: jax.Array) -> tuple[Slots, Slots]:
        segment, both = self._segment, {**gone, **held}
        lying = {s for s in both if SLOTS[s].layout == "groups"}
        there = jnp.minimum(places, _groups(both) - 1)
        rows = {s: jax.tree.map(lambda x, a=SLOTS[s].axis: x[(slice(None),) * a + (there,)], both[s]) for s in lying}
        rows |= given
        copies = {s: value for s, value in both.items() if s not in lying}
        written = effects(segment.nodes)[1]

        def one(mine: Slots, step: jax.Array) -> Slots:
            alone = {s: _map_axis(jnp.expand_dims, s, value) for s, value in mine.items()}
            out = trace(segment.nodes, {**copies, **alone, self._index: step}, frozenset(written))
            return {s: _map_axis(jnp.squeeze, s, out[s]) for s in written}

        taken, given_back = ({s: SLOTS[s].axis for s in names} for names in (rows, written))
        out = jax.vmap(one, (taken, 0), given_back)(rows, steps)
        back = {s: partial(_put_back, places=places, axis=SLOTS[s].axis) for s in gone}
        replaced = {s: jax.tree.map(back[s], gone[s], out[s]) for s in gone}
        return replaced, {s: out[s] for s in written if s not in gone}


def _put_back(x: jax.Array, y: jax.Array, places: jax.Array, axis: int) -> jax.Array:
    return x.at[(slice(None),) * axis + (places,)].set(y, mode="drop")


def _map_axis(function: Any, slot: str, value: Any) -> Any:
    return jax.tree.map(lambda x: function(x, SLOTS[slot].axis), value)


def _groups(slots: Slots) -> int:
    """How many groups slots hold."""
    for slot, value in slots.items():
        for leaf in jax.tree.leaves(value) if SLOTS[slot].layout == "groups" else ():
            return leaf.shape[SLOTS[slot].axis]
    raise TypeError(f"nothing lies in groups among {sorted(slots)}")


def _room(count: int, most: int) -> int:
    """The number of groups that is computed for `count` of them: `most`, or that halved as often as there is room."""
    room = most
    while -(-room // 2) >= count and room > 1:
        room = -(-room // 2)
    return room


def _padded(value: Any, more: int, axis: int) -> Any:
    if not more:
        return value

    def leaf(x: Any) -> Any:
        return np.pad(np.asarray(x), [(0, more if k == axis else 0) for k in range(np.ndim(x))])

    return jax.tree.map(leaf, value)
