"""A queue of one: what an unroll brought is what `grad` draws. For algorithms that learn from fresh experience."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from tessera.stores.base import Experience, Sample, Store


@dataclass(frozen=True)
class Queue(Store):
    """Hands each unroll on as it is. Its buffer is empty until the first put, and then the last unroll's rows."""

    def split(self, groups: int) -> Queue:
        """Return itself: a queue holds what it is given."""
        del groups
        return self

    def init(self, row: Any, rows_per_put: int) -> Any:
        """Make an empty buffer."""
        del row, rows_per_put
        return ()

    def put(self, buffer: Any, experience: Experience) -> Any:
        """Return the sample to be drawn, rows [T, n, ...]; what the buffer held before is gone.

        `valid` is not kept: rows that an on-policy algorithm must not learn from are marked in its rows.
        """
        del buffer
        return Sample(rows=experience.rows, version=experience.version)

    def sample(self, buffer: Any, key: jax.Array) -> Sample:
        """Return all rows of the last unroll, [T, n, ...]."""
        del key
        return buffer

    def update(self, buffer: Any, index: jax.Array, priority: jax.Array) -> Any:
        """Return the buffer as it is: a queue has no priorities."""
        del index, priority
        return buffer
