"""Arrays that are read and written piece by piece, wherever they are, so that no second copy of a replay is needed."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tessera.support.trees import is_key

PIECE_BYTES = 4 * 2**20
"""The most bytes of a piece, unless a single row has more. Arrays of no more than this travel whole."""


class Piece(NamedTuple):
    """Some rows of one group: `array[group, start:stop]`."""

    group: int
    start: int
    stop: int


class StreamedArray(ABC):
    """An array [groups, rows, ...] that is too large to have twice. In a pytree it is a leaf."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @abstractmethod
    def read(self, piece: Piece) -> np.ndarray:
        """Rows of one group, [stop - start, ...]."""

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return math.prod(self.shape) * self.dtype.itemsize

    def pieces(self) -> Iterator[Piece]:
        """All pieces, in row-major order."""
        row = math.prod(self.shape[2:]) * self.dtype.itemsize
        rows = max(1, PIECE_BYTES // max(row, 1))
        for group in range(self.shape[0]):
            for start in range(0, self.shape[1], rows):
                yield Piece(group, start, min(start + rows, self.shape[1]))

    def __getitem__(self, groups: slice) -> StreamedArray:
        return _Groups(self, *groups.indices(self.shape[0])[:2])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy
        whole = np.empty(self.shape, self.dtype)
        for piece in self.pieces():
            whole[piece.group, piece.start : piece.stop] = self.read(piece)
        return whole if dtype is None else whole.astype(dtype, copy=False)


class HeldArray(StreamedArray):
    """An array of this process: NumPy's, or one on devices, of which a piece is copied at a time."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.shape, self.dtype = tuple(array.shape), np.dtype(array.dtype)

    def read(self, piece: Piece) -> np.ndarray:
        """Rows of one group: a view of an array of NumPy's, else a copy."""
        if isinstance(self.array, np.ndarray):
            return self.array[piece.group, piece.start : piece.stop]
        part, first = next(_parts_with(self.array, piece.group))
        # A view of the whole would be less work on a processor, but while there is one the buffer cannot be donated.
        return np.asarray(_cut(part, piece.group - first, piece.start, size=piece.stop - piece.start))


class MemberArray(StreamedArray):
    """The part of one member in an array [members, groups, rows, ...] on a device."""

    def __init__(self, whole: jax.Array, member: int) -> None:
        self._whole, self._member = whole, member
        self.shape, self.dtype = tuple(whole.shape[1:]), np.dtype(whole.dtype)

    def read(self, piece: Piece) -> np.ndarray:
        """Rows of one group, as a copy."""
        return np.asarray(_cut_member(self._whole, self._member, *piece[:2], size=piece.stop - piece.start))


class JoinedArrays(StreamedArray):
    """Arrays one after the other, along the axis of groups."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = [x if isinstance(x, StreamedArray) else HeldArray(np.asarray(x)) for x in parts]
        self._ends = list(itertools.accumulate(x.shape[0] for x in self._parts))
        self.shape, self.dtype = (self._ends[-1], *self._parts[0].shape[1:]), self._parts[0].dtype

    def read(self, piece: Piece) -> np.ndarray:
        """Rows of one group."""
        k = next(k for k, end in enumerate(self._ends) if piece.group < end)
        first = self._ends[k] - self._parts[k].shape[0]
        return self._parts[k].read(piece._replace(group=piece.group - first))


class _Groups(StreamedArray):
    """Some groups of an array."""

    def __init__(self, whole: StreamedArray, first: int, last: int) -> None:
        self._whole, self._first = whole, first
        self.shape, self.dtype = (last - first, *whole.shape[1:]), whole.dtype

    def read(self, piece: Piece) -> np.ndarray:
        """Rows of one group."""
        return self._whole.read(piece._replace(group=piece.group + self._first))


def is_large(leaf: Any) -> bool:
    """Whether an array is worth being streamed: it has groups of rows, and more bytes than a piece."""
    if len(np.shape(leaf) if not hasattr(leaf, "shape") else leaf.shape) < 2:
        return False
    if is_key(leaf):
        return False
    return math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize > PIECE_BYTES


def streamed(tree: Any) -> Any:
    """The same tree, in which large arrays are read piece by piece."""
    return jax.tree.map(lambda x: HeldArray(x) if not isinstance(x, StreamedArray) and is_large(x) else x, tree)


def in_memory(tree: Any) -> Any:
    """The same tree with whole arrays."""
    return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, StreamedArray) else x, tree)


def filled(array: jax.Array, source: StreamedArray) -> jax.Array:
    """The array with the contents of another one, in the same buffers; an array that is its own source stays."""
    if isinstance(source, HeldArray) and source.array is array:
        return array
    if source.shape != array.shape:
        raise ValueError(f"an array of shape {source.shape} cannot fill one of {array.shape}")
    for piece in source.pieces():
        array = with_piece(array, piece, source.read(piece))
    return array


def with_member(whole: jax.Array, member: int, part: Any) -> jax.Array:
    """An array [members, ...] with another part of one member, in the same buffer: do not use the old array again."""
    if not isinstance(part, StreamedArray):
        return _put_member(whole, part, member)
    for piece in part.pieces():
        whole = _put_member_rows(whole, part.read(piece).view(np.dtype(whole.dtype)), member, *piece[:2])
    return whole


def with_piece(array: jax.Array, piece: Piece, rows: np.ndarray) -> jax.Array:
    """The array with other rows in one place, in the same buffers: the old array must not be used any more."""
    rows = rows.view(np.dtype(array.dtype))
    if array.is_fully_replicated and len(array.sharding.device_set) == 1:  # not by parts, which would commit it
        return _put(array, rows, piece.group, piece.start)
    parts = [shard.data for shard in array.addressable_shards]
    firsts = [_first(shard, array) for shard in array.addressable_shards]
    sharding, shape = array.sharding, array.shape
    for k, first in enumerate(firsts):
        if first <= piece.group < first + parts[k].shape[0]:
            parts[k] = _put(parts[k], rows, piece.group - first, piece.start)
    return jax.make_array_from_single_device_arrays(shape, sharding, parts)


def _parts_with(array: jax.Array, group: int) -> Iterator[tuple[jax.Array, int]]:
    """The parts of an array, on one device each, that hold a group, and the first group of each."""
    for shard in array.addressable_shards:
        first = _first(shard, array)
        if first <= group < first + shard.data.shape[0]:
            yield shard.data, first


def _first(shard: Any, array: jax.Array) -> int:
    return shard.index[0].indices(array.shape[0])[0]


@partial(jax.jit, static_argnames="size")
def _cut(array: jax.Array, group: Any, start: Any, size: int) -> jax.Array:
    rest = (0,) * (array.ndim - 2)
    return jax.lax.dynamic_slice(array, (group, start, *rest), (1, size, *array.shape[2:]))[0]


@partial(jax.jit, donate_argnums=0)
def _put(array: jax.Array, rows: Any, group: Any, start: Any) -> jax.Array:
    rest = (0,) * (array.ndim - 2)
    return jax.lax.dynamic_update_slice(array, jnp.asarray(rows)[None], (group, start, *rest))


@partial(jax.jit, static_argnames="size")
def _cut_member(whole: jax.Array, member: Any, group: Any, start: Any, size: int) -> jax.Array:
    rest = (0,) * (whole.ndim - 3)
    return jax.lax.dynamic_slice(whole, (member, group, start, *rest), (1, 1, size, *whole.shape[3:]))[0, 0]


@partial(jax.jit, donate_argnums=0)
def _put_member(whole: jax.Array, part: Any, member: Any) -> jax.Array:
    return whole.at[member].set(part)


@partial(jax.jit, donate_argnums=0)
def _put_member_rows(whole: jax.Array, rows: Any, member: Any, group: Any, start: Any) -> jax.Array:
    rest = (0,) * (whole.ndim - 3)
    return jax.lax.dynamic_update_slice(whole, jnp.asarray(rows)[None, None], (member, group, start, *rest))
