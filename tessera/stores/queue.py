"""A queue of one unroll: `grad` draws exactly the last one. For algorithms that learn from fresh experience."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from tessera.stores.base import Experience, Sample, Store


@dataclass(frozen=True)
class Queue(Store):
    """Passes each unroll on as it is. Its buffer is empty until the first put, and then the last unroll's rows."""

    def split(self, groups: int) -> Queue:
        """Return the same queue: it has neither capacity nor batch."""
        del groups
        return self

    def init(self, row: Any, rows_per_put: int) -> Any:
        """Make an empty buffer."""
        del row, rows_per_put
        return ()

    def put(self, buffer: Any, experience: Experience) -> Any:
        """Return the next sample, rows [T, n, ...], which replaces the last one.

        `valid` is not kept: an on-policy algorithm marks invalid steps in its rows.
        """
        del buffer
        return Sample(rows=experience.rows, version=experience.version)

    def sample(self, buffer: Any, key: jax.Array) -> Sample:
        """Return all rows of the last unroll, [T, n, ...]."""
        del key
        return buffer

    def update(self, buffer: Any, index: jax.Array, priority: jax.Array) -> Any:
        """Return the buffer unchanged: a queue has no priorities."""
        del index, priority
        return buffer
