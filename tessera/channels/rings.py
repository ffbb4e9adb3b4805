"""Links between processes of one machine: rings in shared memory, which each process maps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from tessera.channels.control_words import CONTROL_WORDS, PRESENCE
from tessera.channels.link import HERE, LinkSpec, Message
from tessera.channels.shared_memory import Allocator, Arena, Bell, Layout, Ring, SharedVector
from tessera.graph.disciplines import Shared
from tessera.graph.plan import Plan


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
    vectors: dict[int, tuple[dict[str, tuple[int, int]], Any]]
    """Channel -> offset and size of the vector for each dtype, and a value of the same shapes."""


def lay_out(plan: Plan, link_specs: dict[tuple[int, int], LinkSpec], carried: Any) -> ArenaLayout:
    """Reserve offsets for everything that processes share; `carried` has the shapes of what peers add to."""
    allocator = Allocator()
    processes = sum(f.replicas for f in plan.fragments)
    bells = allocator.take(Bell.nbytes(processes + 1))
    control = allocator.take(processes * CONTROL_WORDS * 8)
    links: dict[tuple[int, int], PlacedLink] = {}
    vectors: dict[int, tuple[dict[str, tuple[int, int]], Any]] = {}
    for k, channel in enumerate(plan.channels):
        if isinstance(channel.discipline, Shared):
            regions = {}
            for dtype, leaves in _by_dtype(carried).items():
                count = sum(int(np.prod(x.shape)) for x in leaves)
                regions[dtype] = (allocator.take(SharedVector.nbytes(count, dtype)), count)
            vectors[k] = ({**regions, "begun": (allocator.take(8), 1)}, carried)
    for name, spec in link_specs.items():
        layout = Layout.of(jax.tree.leaves(spec.like))
        links[name] = PlacedLink(allocator.take(Ring.nbytes(layout, spec.slots, len(spec.readers))), spec)
    return ArenaLayout(allocator.size, processes, bells, control, links, vectors)


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

    @property
    def sent(self) -> int:
        """Messages so far."""
        return self.ring.sent

    def can_send(self) -> bool:
        """Whether one more message may be sent."""
        if self._spec.register:
            return True
        ring = self.ring
        if ring.sent - min(ring.taken(r) for r in range(ring.readers)) < self.capacity:
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


class SharedTree:
    """One tree of numbers that peers add to without locks."""

    def __init__(self, arena: Arena, regions: dict[str, tuple[int, int]], like: Any) -> None:
        """`regions` has offset and size of the vector for each dtype, and of a flag; `like` has the value's shapes."""
        self._like = like
        self._vectors = {d: SharedVector(arena, *region, d) for d, region in regions.items() if d != "begun"}
        self._begun = arena.array(regions["begun"][0], (1,), np.int64)

    def begin(self, value: Any) -> None:
        """Set the value, unless a peer has: all begin with the same one."""
        if not self._begun[0]:
            for dtype, flat in self._flat(value).items():
                self._vectors[dtype].write(flat)
            self._begun[0] = 1

    def add(self, value: Any) -> None:
        """Add in place, element by element."""
        for dtype, flat in self._flat(value).items():
            self._vectors[dtype].add(flat)

    def read(self) -> Any:
        """Copy the value."""
        flats = {d: v.read() for d, v in self._vectors.items()}
        leaves, structure = jax.tree.flatten(self._like)
        used = dict.fromkeys(flats, 0)
        out = []
        for leaf in leaves:
            dtype, count = np.dtype(leaf.dtype).str, int(np.prod(leaf.shape))
            out.append(flats[dtype][used[dtype] : used[dtype] + count].reshape(leaf.shape))
            used[dtype] += count
        return jax.tree.unflatten(structure, out)

    def _flat(self, value: Any) -> dict[str, np.ndarray]:
        return {d: np.concatenate([np.ravel(x) for x in xs]) for d, xs in _by_dtype(jax.device_get(value)).items()}


def _by_dtype(value: Any) -> dict[str, list[Any]]:
    leaves: dict[str, list[Any]] = {}
    for leaf in jax.tree.leaves(value):
        leaves.setdefault(np.dtype(leaf.dtype).str, []).append(leaf)
    return leaves


def make_ends(
    layout: ArenaLayout, arena: Arena, bell: Bell
) -> tuple[Callable[[int, int], RingLink], Callable[[int], SharedTree]]:
    """Make the two functions that a port needs: the end of a link, and the memory of a channel."""
    words = arena.array(layout.control, (layout.processes * CONTROL_WORDS,), np.int64).data

    def presence(place: int) -> int:
        return words[place * CONTROL_WORDS + PRESENCE]

    def link(channel: int, lane: int) -> RingLink:
        return RingLink(arena, layout.links[channel, lane], bell, presence)

    def vector(channel: int) -> SharedTree:
        return SharedTree(arena, *layout.vectors[channel])

    return link, vector
