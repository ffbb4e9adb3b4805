"""Rows of batches in groups: their number, and those of one minibatch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tessera.errors import TesseraError


def rows_per_group(batch: Any, minibatches: int, name: str) -> int:
    """Rows of one group's batch; an error if minibatches do not divide them."""
    rows = jax.tree.leaves(batch)[0].shape[1]
    if rows % minibatches:
        raise TesseraError(
            f"{name}: {rows} rows per group do not divide into {minibatches} minibatches: "
            "change --minibatches, --unroll, --envs or --groups"
        )
    return rows


def all_rows(batch: Any) -> jax.Array:
    """The numbers of all rows of each group, [groups, rows]."""
    groups, rows = jax.tree.leaves(batch)[0].shape[:2]
    return jnp.broadcast_to(jnp.arange(rows), (groups, rows))


def flat_rows(x: jax.Array) -> jax.Array:
    """[groups, rows, ...] to [groups × rows, ...]."""
    return x.reshape(-1, *x.shape[2:])


def pick(batch: Any, order: jax.Array) -> Any:
    """Gather rows `order` [groups, k] of each group, by one gather over flat rows, which is fastest."""
    rows = jax.tree.leaves(batch)[0].shape[1]
    index = (order + jnp.arange(order.shape[0])[:, None] * rows).reshape(-1)
    return jax.tree.map(lambda x: flat_rows(x).at[index].get(mode="promise_in_bounds"), batch)
