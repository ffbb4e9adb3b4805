"""One value that peers share, in memory that all of them map, or in that of one process (Hogwild)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from tessera.channels.shared_memory import ALIGNMENT, Layout, Memory, SharedVector, fence_if_weak
from tessera.program.peers import SharedParts


@dataclass(frozen=True)
class PlacedTree:
    """Where such a value lies. Plain data: every process builds its end from it."""

    offset: int
    like: SharedParts
    """What one peer writes, in shape."""
    peers: int

    @property
    def nbytes(self) -> int:
        """Bytes that it takes: a counter for each peer, the numbers that all add to, and a row for each peer."""
        added, own = self.layouts
        return added.nbytes + self.peers * (ALIGNMENT + own.nbytes)

    @property
    def layouts(self) -> tuple[Layout, Layout]:
        """The numbers that all add to, and what one peer writes alone."""
        return Layout.of(jax.tree.leaves(self.like.added)), Layout.of(jax.tree.leaves(_own(self.like)))


class PlainMemory:
    """Memory of one process, where all peers take turns in it."""

    def __init__(self, size: int) -> None:
        self._bytes = np.zeros(size, np.uint8)

    def array(self, offset: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """View a part of the memory as an array."""
        return np.ndarray(shape, dtype, self._bytes.data, offset)


class SharedTree:
    """One peer's end. Nothing is locked: all add in place to some numbers, and everything else has one writer."""

    def __init__(self, memory: Memory, placed: PlacedTree, me: int) -> None:
        self.peers, self._me, self._like = placed.peers, me, placed.like
        added, own = placed.layouts
        self._sent = [memory.array(placed.offset + p * ALIGNMENT, (1,), np.int64) for p in range(self.peers)]
        begin = placed.offset + self.peers * ALIGNMENT
        self._added = [
            SharedVector(memory, begin + offset, int(np.prod(shape)), dtype)
            for offset, (shape, dtype) in zip(added.offsets, added.leaves, strict=True)
        ]
        begin += added.nbytes
        own_structure: Any = jax.tree.structure(_own(placed.like))
        self._rows = [
            SharedParts((), *own_structure.unflatten(own.views(memory, begin + p * own.nbytes)))
            for p in range(self.peers)
        ]

    @property
    def sent(self) -> int:
        """How often this peer has added, or its predecessors."""
        return int(self._sent[self._me][0])

    @property
    def sent_by_others(self) -> int:
        """How often all other peers have added."""
        return sum(int(count[0]) for p, count in enumerate(self._sent) if p != self._me)

    def begin(self, value: SharedParts) -> None:
        """Set the value, before any peer adds: each writes its own part, and the first one what all add to."""
        if self._me == 0:
            for vector, leaf in zip(self._added, jax.tree.leaves(value.added), strict=True):
                vector.write(np.ravel(leaf))
        self._write(value)
        self._sent[self._me][0] = 0

    def add(self, value: SharedParts) -> None:
        """Add in place, element by element; the counter last, so that a successor makes again what is half done."""
        for vector, leaf in zip(self._added, jax.device_get(jax.tree.leaves(value.added)), strict=True):
            vector.add(np.ravel(leaf))
        self._write(value)
        fence_if_weak()
        self._sent[self._me][0] += 1

    def read(self) -> SharedParts:
        """Copy what it holds: of what peers write alone, the mean, all of it, or this peer's."""
        leaves: list[Any] = jax.tree.leaves(self._like.added)
        structure: Any = jax.tree.structure(self._like.added)
        added = [v.read().reshape(x.shape) for v, x in zip(self._added, leaves, strict=True)]
        return SharedParts(
            structure.unflatten(added),
            jax.tree.map(_mean, *(row.averaged for row in self._rows)),
            jax.tree.map(lambda *rows: np.concatenate(rows), *(row.listed for row in self._rows)),
            jax.tree.map(np.copy, self._rows[self._me].kept),
        )

    def _write(self, value: SharedParts) -> None:
        views = jax.tree.leaves(_own(self._rows[self._me]))
        for view, leaf in zip(views, jax.device_get(jax.tree.leaves(_own(value))), strict=True):
            view[...] = leaf


def _own(value: SharedParts) -> tuple[Any, Any, Any]:
    """What a peer writes alone."""
    return value.averaged, value.listed, value.kept


def _mean(first: np.ndarray, *others: np.ndarray) -> np.ndarray:
    total = first.copy()
    for other in others:
        total += other
    total /= 1 + len(others)
    return total
