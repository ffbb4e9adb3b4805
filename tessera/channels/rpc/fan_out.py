"""Readers of one link that share the memory of their node: a message comes to one of them, and all read it there.

The replica that a message was sent to copies it into a buffer in that memory and wakes the others. Which replica that
is may change from message to message; the buffer, like all memory of a node, outlives the processes that use it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import jax
import numpy as np

from tessera.channels.link import LinkSpec
from tessera.channels.rpc.wire import LinkName
from tessera.channels.shared_memory import ALIGNMENT, Arena, Layout, fence_if_weak

RELAY_SECONDS = 0.5
"""How long a relay may take to confirm params before newer ones go to another one: it may be stuck."""
FEWEST_READERS = 2
"""Readers on one node, other than the writer's, that get a message together."""
_WORDS = ALIGNMENT // 8


@dataclass(frozen=True)
class PlacedBuffer:
    """The offset of a buffer, and for whom it is."""

    offset: int
    spec: LinkSpec
    readers: tuple[int, ...]
    """Numbers of the readers of the link that are on this node."""
    places: tuple[int, ...]
    """Their places, and that of the writer if it is on this node too."""

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in the memory."""
        lines = self.spec.slots + len(self.readers)
        return lines * ALIGNMENT + self.spec.slots * Layout.of(jax.tree.leaves(self.spec.like)).nbytes


def buffers_of_nodes(
    link_specs: dict[LinkName, LinkSpec], nodes: Sequence[str]
) -> dict[str, dict[LinkName, PlacedBuffer]]:
    """Node -> links between nodes whose readers there get each message once; `nodes` has the node of every place.

    On the writer's own node one reader is enough. Readers that may be absent are left out: who is passed over differs
    from reader to reader.
    """
    found: dict[str, dict[LinkName, PlacedBuffer]] = {}
    for name, spec in link_specs.items():
        if spec.absent is not None or len({nodes[place] for place in spec.places}) == 1:
            continue
        by_node: dict[str, list[int]] = {}
        for reader, place in enumerate(spec.readers):
            if place != spec.writer and nodes[place]:
                by_node.setdefault(nodes[place], []).append(reader)
        for node, readers in by_node.items():
            own = nodes[spec.writer] == node
            if len(readers) >= (1 if own else FEWEST_READERS):
                places = (*(spec.readers[r] for r in readers), *((spec.writer,) if own else ()))
                found.setdefault(node, {})[name] = PlacedBuffer(0, spec, tuple(readers), places)
    return found


class FanOutBuffer:
    """The last messages of one link, for the readers on one node; zeroed memory is an empty buffer.

    Whoever a message comes to writes it, so writers lock the memory. Readers do not: the mark of a slot is cleared
    before its bytes change, and set after that.
    """

    def __init__(self, arena: Arena, placed: PlacedBuffer) -> None:
        self.readers, self._arena = placed.readers, arena
        self._slots = placed.spec.slots
        lines = self._slots + len(placed.readers)
        self._words = arena.array(placed.offset, (lines * _WORDS,), np.int64).data
        self._taken = {r: (self._slots + k) * _WORDS for k, r in enumerate(placed.readers)}
        nbytes = Layout.of(jax.tree.leaves(placed.spec.like)).nbytes
        begin = placed.offset + lines * ALIGNMENT
        self._contents = [arena.array(begin + slot * nbytes, (nbytes,), np.uint8) for slot in range(self._slots)]

    def write(self, number: int, version: int, content: np.ndarray) -> None:
        """Keep a message, unless it or a later one in its slot is there."""
        words, mark = self._words, number % self._slots * _WORDS
        with self._arena.locked():
            if words[mark] > number:
                return
            words[mark] = 0
            fence_if_weak()
            self._contents[number % self._slots][...] = content
            words[mark + 1] = version
            fence_if_weak()
            words[mark] = number + 1

    def holds(self, number: int) -> bool:
        """Whether a message is there."""
        return self._words[number % self._slots * _WORDS] == number + 1

    def newest(self) -> int:
        """The number of the newest message; -1 if there is none."""
        return max(self._words[slot * _WORDS] for slot in range(self._slots)) - 1

    def read(self, number: int) -> tuple[np.ndarray, int] | None:
        """Copy a message: its bytes and its version. None if it is not there, or was overwritten meanwhile."""
        if not self.holds(number):
            return None
        fence_if_weak()
        version = self._words[number % self._slots * _WORDS + 1]
        content = self._contents[number % self._slots].copy()
        fence_if_weak()
        return (content, version) if self.holds(number) else None

    def taken(self, reader: int) -> int:
        """Messages that a reader has released, as it has noted here."""
        return self._words[self._taken[reader]]

    def note_taken(self, reader: int, taken: int) -> None:
        """Note what a reader has released, for a writer on this node."""
        self._words[self._taken[reader]] = taken


@dataclass(frozen=True)
class PlacedCredits:
    """The offset of the credits of one link, and for whom they are."""

    offset: int
    writer: int
    """The place on this node that writes the link."""
    readers: int

    @property
    def nbytes(self) -> int:
        """Bytes that they take in the memory."""
        return 8 * (1 + self.readers)


class SharedCredits:
    """What readers of a link on other nodes have released, for its writer. Any replica of the writer's node that learns
    of it notes it here."""

    def __init__(self, arena: Arena, placed: PlacedCredits) -> None:
        self.writer, self._arena = placed.writer, arena
        self._words = arena.array(placed.offset, (1 + placed.readers,), np.int64).data
        self._seen = 0

    def note(self, reader: int, taken: int) -> None:
        """Note what a reader has released."""
        with self._arena.locked():
            self._words[1 + reader] = max(self._words[1 + reader], taken)
            self._words[0] += 1

    def changed(self) -> list[int]:
        """What each reader has released, if anything was noted since this was last asked."""
        count = self._words[0]
        if count == self._seen:
            return []
        fence_if_weak()
        self._seen = count
        return list(self._words[1:])


@dataclass(frozen=True)
class FanOut:
    """How one end of a link uses the memory of its node, and what its writer knows of other nodes."""

    groups: tuple[tuple[int, ...], ...] = ()
    """Numbers of the readers that share the memory of a node, for each other node that has such."""
    buffer: FanOutBuffer | None = None
    """In the memory of this node, if readers of the link share it."""
    credits: SharedCredits | None = None
    """What neighbours of the writer learn for it."""
    neighbours: tuple[int, ...] = ()
    """Places of the other replicas that use this buffer."""
    wake: Callable[[int], None] = field(default=lambda place: None)
    """Makes a neighbour look again."""
    reachable: Callable[[int], bool] = field(default=lambda place: True)
    """Whether the replica of a place is known to run: not from a death until its successor reports."""
    clock: Callable[[], float] = time.monotonic
