"""What a store is: where experience waits until `grad` draws it. A store sees one group; the framework vmaps."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

NOWHERE = np.iinfo(np.int32).max
"""An address that no store has: priorities sent there change nothing."""


class Experience(NamedTuple):
    """What `act` sends to `store`, for one group: every leaf has leading axes [T, n] (rows in time, environments)."""

    rows: Any
    valid: jax.Array | None = None
    """[T, n] False for rows that must not be learned from; None if all may."""
    priority: jax.Array | None = None
    """[T, n] first priorities, where the actor computes them; None: new rows get the largest priority so far."""
    version: jax.Array | None = None
    """[T, n] version of the params that each row was made with, in gradients applied; None: unknown."""


class Sample(NamedTuple):
    """What `store` sends to `grad`, for one group."""

    rows: Any
    """From a queue: [T, n, ...], all of one unroll. From a replay: [batch, ...]."""
    weight: jax.Array | None = None
    """[batch] importance weights of a prioritised replay, before normalisation: 1 / (filled * probability)."""
    index: jax.Array | None = None  # type: ignore[assignment]
    """[batch] slots of the rows in the buffer, the addresses of new priorities."""
    version: jax.Array | None = None
    """Version of the params that each row was made with; its shape is that of the rows' leading axes."""


class Store:
    """Interface of a store for one group; frozen dataclasses implement it."""

    prioritised: bool = False
    """Whether new priorities flow back from `grad`."""
    persistent: bool = False
    """Whether the buffer outlives an update (a replay) or only passes experience on (a queue)."""

    def split(self, groups: int) -> Store:
        """Return the store of one of `groups` groups; capacity and batch of this one are for all groups together."""
        raise NotImplementedError

    def init(self, row: Any, rows_per_put: int) -> Any:
        """Make an empty buffer for rows like `row` (a tree of shapes and dtypes), put `rows_per_put` at a time."""
        raise NotImplementedError

    def put(self, buffer: Any, experience: Experience) -> Any:
        """Return the buffer with one unroll's experience in it."""
        raise NotImplementedError

    def sample(self, buffer: Any, key: jax.Array) -> Sample:
        """Draw once."""
        raise NotImplementedError

    def update(self, buffer: Any, index: jax.Array, priority: jax.Array) -> Any:
        """Return the buffer with new priorities at `index`."""
        raise NotImplementedError
