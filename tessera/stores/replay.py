"""A ring of rows that are drawn again and again, uniformly or by priority (Schaul et al., 2016).

Priorities lie in a sum tree: the lowest level has one entry for each slot, priority^alpha, and each entry above is the
sum of `_FANOUT` entries below. A parent is always summed again from its children, so that sums do not drift. A draw
walks down from the top and chooses a child in proportion to its entry. Draws are independent, with replacement.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tessera.errors import TesseraError
from tessera.maths.distributions import inverse_cdf
from tessera.stores.base import NOWHERE, Experience, Sample, Store

# Children of one parent: one cache line, and five levels for a million slots.
_FANOUT = 16

# A level above at most this many entries is summed as a whole: that costs less than finding the families that changed.
_FEW = 8192

# Larger priorities are clipped to this, so that their sums stay finite in float32.
_LARGEST = 1e12

Tree = tuple[jax.Array, ...]


class ReplayBuffer(NamedTuple):
    """The buffer of one group."""

    rows: Any
    """A tree of [capacity, ...]."""
    head: jax.Array
    """int32: the slot that the next row goes to."""
    filled: jax.Array
    """int32: number of slots that hold a row; they are the first ones."""
    tree: Tree
    """Levels of the sum tree from the slots up, float32; () if not prioritised."""
    largest: jax.Array
    """float32: the largest priority so far, for new rows."""
    version: jax.Array
    """int32 [capacity]: version of the params that each row was made with."""


def _level_sizes(capacity: int) -> list[int]:
    """Entries of each level, from the slots up; each is a whole number of families, the last a single one."""
    sizes, n = [], capacity
    while True:
        families = -(-n // _FANOUT)
        sizes.append(families * _FANOUT)
        if families == 1:
            return sizes
        n = families


def _families(level: jax.Array) -> jax.Array:
    """View a level as [parents, children of each]."""
    return level.reshape(-1, _FANOUT)


def _sum_all(level: jax.Array, children: jax.Array) -> jax.Array:
    """Sum all families into the level above them."""
    return jax.lax.dynamic_update_slice(level, jnp.sum(children, axis=1), (0,))


def _set_range(tree: Tree, start: jax.Array, values: jax.Array) -> Tree:
    """Write `values` [R] to the slots from `start` on, which all exist, and sum their parents again."""
    count = values.shape[0]
    levels = [jax.lax.dynamic_update_slice(tree[0], values, (start,))]
    for level in tree[1:]:
        children = _families(levels[-1])
        if children.size <= _FEW:
            levels.append(_sum_all(level, children))
            continue
        # One more family than fits, as the range may begin inside one; summing a few others again does no harm.
        count = min(count // _FANOUT + 2, children.shape[0])
        start = jnp.minimum(start // _FANOUT, children.shape[0] - count)
        sums = jnp.sum(jax.lax.dynamic_slice(children, (start, jnp.zeros_like(start)), (count, _FANOUT)), axis=1)
        levels.append(jax.lax.dynamic_update_slice(level, sums, (start,)))
    return tuple(levels)


def _set_slots(tree: Tree, index: jax.Array, values: jax.Array) -> Tree:
    """Write `values` [B] to the slots `index` [B], except those beyond the last, and sum their parents again.

    Where a parent appears twice, both write the same sum.
    """
    levels = [tree[0].at[index].set(values, mode="drop")]
    for level in tree[1:]:
        children = _families(levels[-1])
        index = index // _FANOUT
        if children.size <= _FEW:
            levels.append(_sum_all(level, children))
            continue
        sums = jnp.sum(children.at[index].get(mode="clip"), axis=1)
        levels.append(level.at[index].set(sums, mode="drop"))
    return tuple(levels)


def _draw(tree: Tree, key: jax.Array, batch: int) -> jax.Array:
    """Walk down from the top `batch` times: int32 [batch] slots.

    Each level has a uniform number of its own: one number for the whole walk has too few bits for a million slots.
    """
    uniform = jax.random.uniform(key, (len(tree), batch), jnp.float32)
    index = jnp.zeros((batch,), jnp.int32)
    for depth, level in enumerate(reversed(tree)):
        children = _families(level).at[index].get(mode="promise_in_bounds")
        index = index * _FANOUT + inverse_cdf(children, uniform[depth])
    return index


@dataclass(frozen=True)
class Replay(Store):
    """Keeps the newest `capacity` rows and draws `batch` of them at a time, with replacement."""

    capacity: int
    """Rows that are kept, in all groups together; a group's part is rounded up to whole puts."""
    batch: int
    """Rows that are drawn at a time, in all groups together."""
    prioritised: bool = False
    """Draw in proportion to priority^alpha within a group, rather than uniformly."""
    alpha: float = 0.6
    """How much priorities matter: 0 not at all, 1 in full proportion."""

    persistent = True

    def split(self, groups: int) -> Replay:
        """Return the replay of one group."""
        if self.batch % groups:
            raise TesseraError(
                f"a batch of {self.batch} rows cannot be drawn from {groups} groups alike: "
                f"choose a batch that is a multiple of {groups}, or another number of groups"
            )
        return replace(self, capacity=-(-self.capacity // groups), batch=self.batch // groups)

    def init(self, row: Any, rows_per_put: int) -> ReplayBuffer:
        """Make an empty buffer; its capacity is rounded up to a multiple of `rows_per_put`."""
        capacity = -(-max(self.capacity, 1) // rows_per_put) * rows_per_put
        rows = jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape), x.dtype), row)
        sizes = _level_sizes(capacity) if self.prioritised else []
        tree = tuple(jnp.zeros((size,), jnp.float32) for size in sizes)
        # Two zeros, not one twice: a buffer may be donated, and an array can be given away only once.
        head, filled = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
        version = jnp.zeros((capacity,), jnp.int32)
        return ReplayBuffer(rows, head, filled, tree, jnp.ones((), jnp.float32), version)

    def put(self, buffer: ReplayBuffer, experience: Experience) -> ReplayBuffer:
        """Write the rows [T, n, ...], in order, over the oldest ones; invalid rows are left out.

        Every put brings `rows_per_put` rows. If `valid` is None in one put it must be None in all: then no put wraps
        around the end.
        """
        rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), experience.rows)
        priority = None if experience.priority is None else experience.priority.reshape(-1)
        count, capacity = jax.tree.leaves(rows)[0].shape[0], buffer.version.shape[0]
        version = jnp.zeros(count, jnp.int32) if experience.version is None else experience.version.reshape(-1)
        valid = None if experience.valid is None else experience.valid.reshape(-1).astype(bool)
        if count > capacity:
            raise ValueError(f"a put of {count} rows does not fit into {capacity} slots")
        if valid is None and capacity % count == 0:
            return self._put_all(buffer, (rows, version), priority)
        return self._put_some(buffer, (rows, version), priority, jnp.ones((count,), bool) if valid is None else valid)

    def _put_all(self, buffer: ReplayBuffer, rows: Any, priority: jax.Array | None) -> ReplayBuffer:
        """Write one contiguous block of (rows, versions): neither scatter nor wrap-around."""
        count, capacity = rows[1].shape[0], buffer.version.shape[0]

        def write(all_rows: jax.Array, new: jax.Array) -> jax.Array:
            start = [buffer.head] + [jnp.zeros_like(buffer.head)] * (new.ndim - 1)
            return jax.lax.dynamic_update_slice(all_rows, new.astype(all_rows.dtype), start)

        tree, largest = buffer.tree, buffer.largest
        if self.prioritised:
            first = self._first_priority(buffer, priority, count)
            tree, largest = _set_range(tree, buffer.head, self._entry(first)), self._larger(largest, first)
        stored, version = jax.tree.map(write, (buffer.rows, buffer.version), rows)
        return ReplayBuffer(
            rows=stored,
            version=version,
            head=(buffer.head + count) % capacity,
            filled=jnp.minimum(buffer.filled + count, capacity),
            tree=tree,
            largest=largest,
        )

    def _put_some(self, buffer: ReplayBuffer, rows: Any, priority: jax.Array | None, valid: jax.Array) -> ReplayBuffer:
        """Write the valid ones of (rows, versions) to the next slots, wrapping around the end."""
        count, capacity = rows[1].shape[0], buffer.version.shape[0]
        before = jnp.cumsum(valid.astype(jnp.int32)) - 1
        # Invalid rows get a slot that no level has, and the scatter drops them.
        slot = jnp.where(valid, (buffer.head + before) % capacity, NOWHERE)
        kept = before[-1] + 1
        tree, largest = buffer.tree, buffer.largest
        if self.prioritised:
            first = self._first_priority(buffer, priority, count)
            tree = _set_slots(tree, slot, self._entry(first))
            largest = self._larger(largest, jnp.where(valid, first, 0))
        stored, version = jax.tree.map(
            lambda all_rows, new: all_rows.at[slot].set(new.astype(all_rows.dtype), mode="drop"),
            (buffer.rows, buffer.version),
            rows,
        )
        return ReplayBuffer(
            rows=stored,
            version=version,
            head=(buffer.head + kept) % capacity,
            filled=jnp.minimum(buffer.filled + kept, capacity),
            tree=tree,
            largest=largest,
        )

    def sample(self, buffer: ReplayBuffer, key: jax.Array) -> Sample:
        """Draw `batch` rows, each independent of the others; the buffer must hold at least one.

        A prioritised replay adds importance weights, 1 / (filled * probability), without exponent or normalisation.
        """
        if self.prioritised:
            index = _draw(buffer.tree, key, self.batch)
            total = jnp.sum(buffer.tree[-1])
            entry = buffer.tree[0].at[index].get(mode="promise_in_bounds")
            weight = total / (buffer.filled * jnp.where(entry > 0, entry, 1))
        else:
            index = jax.random.randint(key, (self.batch,), 0, jnp.maximum(buffer.filled, 1), jnp.int32)
            weight = None
        rows, version = jax.tree.map(lambda x: x.at[index].get(mode="promise_in_bounds"), (buffer.rows, buffer.version))
        return Sample(rows, weight, index if self.prioritised else None, version)

    def update(self, buffer: ReplayBuffer, index: jax.Array, priority: jax.Array) -> ReplayBuffer:
        """Set `priority` [B] at the slots `index` [B]; where a slot appears twice, either value may win.

        A row of priority 0 (or below, or nan) is not drawn until its priority is set again.
        """
        if not self.prioritised:
            return buffer
        priority = priority.astype(jnp.float32)
        tree = _set_slots(buffer.tree, index, self._entry(priority))
        return buffer._replace(tree=tree, largest=self._larger(buffer.largest, priority))

    def _first_priority(self, buffer: ReplayBuffer, priority: jax.Array | None, count: int) -> jax.Array:
        """First priorities of new rows, [count]: those that the actor computed, else the largest so far."""
        if priority is None:
            return jnp.full((count,), buffer.largest)
        return priority.astype(jnp.float32)

    def _entry(self, priority: jax.Array) -> jax.Array:
        """Entries of priorities in the tree: priority^alpha, 0 where they are not positive; [B]."""
        return jnp.where(priority > 0, jnp.minimum(priority, _LARGEST) ** self.alpha, 0)

    def _larger(self, largest: jax.Array, priority: jax.Array) -> jax.Array:
        """The largest priority so far, after [B] more."""
        return jnp.maximum(largest, jnp.minimum(jnp.max(jnp.where(priority > 0, priority, 0)), _LARGEST))


def rebuilt(
    store: Replay, like: ReplayBuffer, rows: Any, counts: tuple[int, int, Any], entries: np.ndarray | None
) -> ReplayBuffer:
    """One group's buffer in the shapes of `like`, filled with the newest rows of another buffer, oldest first.

    All arrays are NumPy's.

    Args:
        store: the replay of one group.
        like: a buffer of the new size.
        rows: (rows, versions) of the other buffer, [capacity, ...].
        counts: its `head`, `filled` and `largest`.
        entries: its tree's lowest level; None if it was not prioritised.
    """
    head, filled, largest = counts
    capacity, before = like.version.shape[0], rows[1].shape[0]
    kept = ((head - filled + np.arange(filled)) % before)[-capacity:]

    def leaf(all_rows: np.ndarray, old: np.ndarray) -> np.ndarray:
        new = np.zeros_like(all_rows)
        new[: len(kept)] = old[kept]
        return new

    stored, version = jax.tree.map(leaf, (like.rows, like.version), rows)
    levels = [np.zeros_like(level) for level in like.tree]
    if levels:
        levels[0][: len(kept)] = float(largest) ** store.alpha if entries is None else entries[kept]
        for below, above in itertools.pairwise(levels):
            sums = below.reshape(-1, _FANOUT).sum(1)
            above[: len(sums)] = sums
    counted: Any = (np.int32(len(kept) % capacity), np.int32(len(kept)))
    parts: Any = (stored, *counted, tuple(levels), np.float32(largest), version)
    return ReplayBuffer(*parts)
