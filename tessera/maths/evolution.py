"""Evolution strategies: what a member scored, how scores are shaped, and noise that is known by its seed alone."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

ROOM = 1 << 22
"""Random numbers that are in memory at once while noise is added up."""


def mean_return(reward: jax.Array, over: jax.Array) -> jax.Array:
    """The mean return of the episodes that end within an unroll [T]; what was earned, if none does.

    The unroll begins with an episode. What follows the last end belongs to an episode that nobody saw the end of.
    """
    counted = jax.lax.cummax(over.astype(jnp.int32), reverse=True)
    earned = jnp.where(over.any(), jnp.sum(reward * counted), jnp.sum(reward))
    return earned / jnp.maximum(over.sum(), 1)


def centred_ranks(score: jax.Array, among: jax.Array) -> jax.Array:
    """Where each score stands among all of them, from -0.5 for the lowest to 0.5; equal scores share their ranks."""
    ordered = jnp.sort(among.ravel())
    below = jnp.searchsorted(ordered, score, side="left")
    upto = jnp.searchsorted(ordered, score, side="right")
    return ((below + upto - 1) / 2 / max(ordered.size - 1, 1) - 0.5).astype(score.dtype)


def noise(seed: jax.Array, like: Any) -> Any:
    """Standard normal numbers in the shape of `like`: the same from the same seed, wherever it is."""
    flat, unravel = ravel_pytree(like)
    return unravel(_drawn(seed, flat))


def _drawn(seed: jax.Array, like: jax.Array) -> jax.Array:
    return jax.random.normal(jax.random.wrap_key_data(seed), like.shape, like.dtype)


def weighted_noise(seed: jax.Array, weight: jax.Array, like: Any) -> Any:
    """Sum of every seed's noise times its weight; no more of it is in memory at once than there is room for."""
    flat, unravel = ravel_pytree(like)
    rows = weight.shape[0]
    chunk = max(1, min(rows, ROOM // max(flat.size, 1)))
    padding = -rows % chunk

    def padded(x: jax.Array) -> jax.Array:
        return jnp.concatenate([x, jnp.zeros((padding, *x.shape[1:]), x.dtype)]).reshape(-1, chunk, *x.shape[1:])

    def add(total: jax.Array, part: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        seeds, weights = part
        return total + weights.astype(flat.dtype) @ jax.vmap(lambda s: _drawn(s, flat))(seeds), None

    total, _ = jax.lax.scan(add, jnp.zeros_like(flat), (padded(seed), padded(weight)))
    return unravel(total)
