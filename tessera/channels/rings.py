"""Links between processes of one machine: rings in shared memory, which each process maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from tessera.channels.control_words import CONTROL_WORDS, PRESENCE
from tessera.channels.link import HERE, LinkSpec, Message, Straggler
from tessera.channels.rpc.fan_out import PlacedBuffer, PlacedCredits
from tessera.channels.shared_memory import Allocator, Arena, Bell, Layout, Ring
from tessera.channels.shared_tree import PlacedTree, SharedTree
from tessera.graph.disciplines import Shared
from tessera.graph.plan import Plan
from tessera.program.peers import SharedParts


@dataclass(frozen=True)
class PlacedLink:
    """A link and the offset of its ring."""

    offset: int
    spec: LinkSpec


@dataclass(frozen=True)
class ArenaLayout:
    """Offsets of everything in one arena. Plain data: every process builds its ends from it."""

    size: int
    processes: int
    bells: int
    control: int
    links: dict[tuple[int, int], PlacedLink]
    """By channel and lane: the number of the sender, unless that has several."""
    trees: dict[int, PlacedTree]
    """By channel: a value that peers share."""
    buffers: dict[tuple[int, int], PlacedBuffer] = field(default_factory=dict)
    """By channel and lane: messages of a link between nodes, for its readers on this one."""
    credits: dict[tuple[int, int], PlacedCredits] = field(default_factory=dict)
    """By channel and lane: credits of a link between nodes whose writer is on this one."""
    groups: dict[tuple[int, int], tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    """Of links between nodes that a place writes: readers that share the memory of another node."""
    mates: tuple[tuple[int, ...], ...] = ()
    """Places that a place is linked with, and that share the memory of another node."""

    @property
    def is_shared(self) -> bool:
        """Whether replicas exchange messages through it."""
        return bool(self.links or self.buffers)


def lay_out(
    plan: Plan,
    link_specs: dict[tuple[int, int], LinkSpec],
    shared: SharedParts | None,
    buffers: Mapping[tuple[int, int], PlacedBuffer] | None = None,
    credits: Mapping[tuple[int, int], PlacedCredits] | None = None,
) -> ArenaLayout:
    """Reserve offsets for everything that processes share; `shared` has the shapes of what peers write to a tree.

    `buffers` and `credits` are of links between nodes, and have no offsets yet.
    """
    allocator = Allocator()
    processes = sum(f.replicas for f in plan.fragments)
    bells = allocator.take(Bell.nbytes(processes + 1))
    control = allocator.take(processes * CONTROL_WORDS * 8)
    links: dict[tuple[int, int], PlacedLink] = {}
    trees: dict[int, PlacedTree] = {}
    for k, channel in enumerate(plan.channels):
        if isinstance(channel.discipline, Shared) and shared is not None:
            placed = PlacedTree(allocator.size, shared, plan.fragments[channel.source].replicas)
            allocator.take(placed.nbytes)
            trees[k] = placed
    for name, spec in link_specs.items():
        layout = Layout.of(jax.tree.leaves(spec.like))
        links[name] = PlacedLink(allocator.take(Ring.nbytes(layout, spec.slots, len(spec.readers))), spec)
    placed_buffers = {}
    for name, buffer in (buffers or {}).items():
        placed_buffers[name] = replace(buffer, offset=allocator.take(buffer.nbytes))
    placed_credits = {}
    for name, own in (credits or {}).items():
        placed_credits[name] = replace(own, offset=allocator.take(own.nbytes))
    return ArenaLayout(allocator.size, processes, bells, control, links, trees, placed_buffers, placed_credits)


class RingLink:
    """One end of a ring: sending wakes the readers, releasing wakes the writer."""

    borrowed = True

    def __init__(self, arena: Arena, placed: PlacedLink, bell: Bell, presence: Callable[[int], int]) -> None:
        """`presence` says whether a replica takes part."""
        spec = placed.spec
        leaves = jax.tree.leaves(spec.like)
        self._structure: Any = jax.tree.structure(spec.like)
        self._dtypes = [np.dtype(x.dtype) for x in leaves]
        self.ring = Ring(arena, placed.offset, Layout.of(leaves), spec.slots, len(spec.readers))
        self.like, self.capacity = spec.like, spec.capacity
        self._spec, self._bell, self._presence = spec, bell, presence
        self._straggler = Straggler(range(len(spec.readers)))

    @property
    def sent(self) -> int:
        """Messages so far."""
        return self.ring.sent

    def can_send(self) -> bool:
        """Whether one more message may be sent."""
        if self._spec.register:
            return True
        ring = self.ring
        behind = ring.sent - self.capacity
        if not self._straggler.exists(lambda reader: ring.taken(reader) <= behind):
            return True
        return self._spec.absent is not None and self._spec.can_send(ring.sent, ring.taken, self._presence)

    def away(self) -> bool:
        """Whether the writer does not take part for now."""
        return self._presence(self._spec.writer) != HERE

    def put(self, value: Any, version: int) -> None:
        """Send."""
        leaves = jax.device_get(self._structure.flatten_up_to(value))
        self.ring.write([np.asarray(x, d) for x, d in zip(leaves, self._dtypes, strict=True)], version)
        for reader in self._spec.readers:
            self._bell.ring(reader)

    def waiting(self, reader: int) -> int:
        """Messages that a reader has not taken yet."""
        return self.ring.waiting(reader)

    def peek(self, reader: int, ahead: int = 0) -> Message:
        """View the next message of a reader, or a later one; it must have arrived."""
        views = self.ring.peek(reader, ahead)
        assert views is not None
        number = self.ring.taken(reader) + ahead
        return Message(self._structure.unflatten(views), self.ring.version(number))

    def release(self, reader: int, count: int = 1) -> None:
        """Give messages back to the writer."""
        self.ring.release(reader, count)
        self._bell.ring(self._spec.writer)

    def newest(self) -> Message | None:
        """Copy the newest message, if there ever was one."""
        newest = self.ring.newest()
        if newest is None:
            return None
        _, version, leaves = newest
        return Message(self._structure.unflatten(leaves), version)

    def at(self, number: int) -> Any:
        """Copy the message with this number; None if it was overwritten."""
        message = self.ring.at(number)
        return None if message is None else self._structure.unflatten(message[2])

    def taken(self, reader: int) -> int:
        """Messages that a reader has released."""
        return self.ring.taken(reader)

    def skip(self, reader: int) -> None:
        """Release everything that has arrived."""
        self.ring.skip(reader)
        self._bell.ring(self._spec.writer)


def make_ends(
    layout: ArenaLayout, arena: Arena, bell: Bell
) -> tuple[Callable[[int, int], RingLink], Callable[[int, int], SharedTree]]:
    """Make the two functions that a port needs: the end of a link, and a peer's end of what a channel's peers share."""
    words = arena.array(layout.control, (layout.processes * CONTROL_WORDS,), np.int64).data

    def presence(place: int) -> int:
        return words[place * CONTROL_WORDS + PRESENCE]

    def link(channel: int, lane: int) -> RingLink:
        return RingLink(arena, layout.links[channel, lane], bell, presence)

    def tree(channel: int, peer: int) -> SharedTree:
        return SharedTree(arena, layout.trees[channel], peer)

    return link, tree
