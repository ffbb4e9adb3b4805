"""What channels do with the values that they carry.

Routes, inboxes and ports touch values only through `Values`, so that an engine in virtual time can carry other things
through the same channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import numpy as np

from tessera.channels.gradient_accumulation import Accumulator, GradientAccumulator
from tessera.program.overlap.slot_slices import concatenate_trees


class BatchBuilder(Protocol):
    """A value that is put together part by part."""

    def put(self, position: int, part: Any) -> None:
        """Set the part of one position; the part itself may change afterwards."""

    def finish(self) -> Any:
        """The whole value, once every position was set."""


class Values(Protocol):
    """The operations on values that channels need."""

    def slice(self, value: Any, axis: int, part: slice) -> Any:
        """A part of a value along an axis."""

    def join(self, values: Sequence[Any], axis: int) -> Any:
        """Values put together along an axis, in memory of their own if there are several."""

    def mean(self, values: Sequence[Any], weights: Sequence[int]) -> Any:
        """The weighted mean. Whole numbers are equal in all values, and kept."""

    def sum(self, values: Sequence[Any]) -> Any:
        """The sum."""

    def scale(self, value: Any, factor: float) -> Any:
        """A value times a number."""

    def own(self, value: Any) -> Any:
        """A copy that outlives the message which carried the value."""

    def zeros(self, like: Any) -> Any:
        """A value of the same shape that holds nothing."""

    def batch(self, size: int, axis: int) -> BatchBuilder:
        """An empty batch of `size` positions along an axis."""

    def nbytes(self, value: Any) -> int:
        """Size in bytes."""

    def version(self, view: Any) -> int:
        """The version of published params: gradients applied."""

    def accumulator(self, every: int) -> Accumulator:
        """What so many gradients, which are sent as one, are added up in."""


class ArrayValues:
    """Trees of NumPy and JAX arrays. What lies on the host stays there."""

    def slice(self, value: Any, axis: int, part: slice) -> Any:
        """A view of some entries along an axis."""
        return jax.tree.map(lambda x: x[(slice(None),) * axis + (part,)], value)

    def join(self, values: Sequence[Any], axis: int) -> Any:
        """Concatenate."""
        return concatenate_trees(list(values), axis)

    def mean(self, values: Sequence[Any], weights: Sequence[int]) -> Any:
        """The weighted mean."""
        total = sum(weights)
        shares = [w / total for w in weights]

        def leaf(*xs: Any) -> Any:
            if np.issubdtype(np.asarray(xs[0]).dtype if np.isscalar(xs[0]) else xs[0].dtype, np.integer):
                return xs[0]
            return sum(x * s for x, s in zip(xs, shares, strict=True))

        return jax.tree.map(leaf, *values)

    def sum(self, values: Sequence[Any]) -> Any:
        """The sum, added up in order."""
        return jax.tree.map(lambda *xs: sum(xs[1:], start=xs[0]), *values)

    def scale(self, value: Any, factor: float) -> Any:
        """A value times a number."""
        return jax.tree.map(lambda x: x * factor, value)

    def own(self, value: Any) -> Any:
        """Copy every array."""
        return jax.tree.map(np.array, value)

    def zeros(self, like: Any) -> Any:
        """Zeros on the host."""
        return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), like)

    def batch(self, size: int, axis: int) -> ArrayBatch:
        """An empty batch."""
        return ArrayBatch(self, size, axis)

    def nbytes(self, value: Any) -> int:
        """Size of all arrays."""
        return sum(x.nbytes for x in jax.tree.leaves(value))

    def version(self, view: Any) -> int:
        """Gradients that were applied to published params."""
        return view.clock.applied()

    def accumulator(self, every: int) -> GradientAccumulator:
        """Their mean."""
        return GradientAccumulator(every)


class ArrayBatch:
    """Arrays that are put together entry by entry. Each part on the host is copied once, straight into its position."""

    def __init__(self, values: ArrayValues, size: int, axis: int) -> None:
        self._values, self._size, self._axis = values, size, axis
        self._structure: Any = None
        self._arrays: list[np.ndarray] = []
        self._parts: dict[int, Any] = {}
        """Parts on a device, which are joined in the end."""

    def put(self, position: int, part: Any) -> None:
        """Copy a part, of one entry along the axis, into its position."""
        leaves = jax.tree.leaves(part)
        if not all(isinstance(x, np.ndarray) for x in leaves):
            self._parts[position] = part
            return
        if not self._arrays:
            self._structure = jax.tree.structure(part)
            self._arrays = [self._empty(x) for x in leaves]
        where = (slice(None),) * self._axis + (slice(position, position + 1),)
        for array, x in zip(self._arrays, leaves, strict=True):
            array[where] = x

    def finish(self) -> Any:
        """The whole value."""
        if self._parts:
            return self._values.join([self._parts[k] for k in sorted(self._parts)], self._axis)
        return jax.tree.unflatten(self._structure, self._arrays)

    def _empty(self, like: np.ndarray) -> np.ndarray:
        shape = (*like.shape[: self._axis], self._size, *like.shape[self._axis + 1 :])
        return np.empty(shape, like.dtype)


ARRAYS = ArrayValues()
