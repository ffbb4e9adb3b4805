"""Evolution strategies: the score of a member, ranks of scores, and noise that a seed alone determines."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

CHUNK_SIZE = 1 << 22
"""Random numbers that are in memory at once while noise is summed."""


def mean_return(reward: jax.Array, over: jax.Array) -> jax.Array:
    """The mean return of the episodes that end within an unroll [T]; the sum of rewards, if none does.

    The unroll begins with an episode. Rewards after the last end do not count: their episode is not complete.
    """
    counted = jax.lax.cummax(over.astype(jnp.int32), reverse=True)
    earned = jnp.where(over.any(), jnp.sum(reward * counted), jnp.sum(reward))
    return earned / jnp.maximum(over.sum(), 1)


def centred_ranks(score: jax.Array, among: jax.Array) -> jax.Array:
    """Ranks of scores `among` all, from -0.5 for the lowest to 0.5; equal scores get the mean of their ranks."""
    ordered = jnp.sort(among.ravel())
    below = jnp.searchsorted(ordered, score, side="left")
    up_to = jnp.searchsorted(ordered, score, side="right")
    return (below + up_to - 1).astype(score.dtype) / 2 / max(ordered.size - 1, 1) - 0.5


def noise(seed: jax.Array, like: Any) -> Any:
    """Standard normal numbers in the shape of `like`: the same from the same seed, on every machine."""
    flat, unravel = ravel_pytree(like)
    return unravel(_normal(seed, flat))


def _normal(seed: jax.Array, like: jax.Array) -> jax.Array:
    return jax.random.normal(jax.random.wrap_key_data(seed), like.shape, like.dtype)


def weighted_noise(seed: jax.Array, weight: jax.Array, like: Any) -> Any:
    """Sum of every seed's noise times its weight, with at most `CHUNK_SIZE` random numbers in memory at once."""
    flat, unravel = ravel_pytree(like)
    rows = weight.shape[0]
    chunk = max(1, min(rows, CHUNK_SIZE // max(flat.size, 1)))
    padding = -rows % chunk

    def padded(x: jax.Array) -> jax.Array:
        return jnp.concatenate([x, jnp.zeros((padding, *x.shape[1:]), x.dtype)]).reshape(-1, chunk, *x.shape[1:])

    def add(total: jax.Array, part: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        seeds, weights = part
        return total + weights.astype(flat.dtype) @ jax.vmap(lambda s: _normal(s, flat))(seeds), None

    total, _ = jax.lax.scan(add, jnp.zeros_like(flat), (padded(seed), padded(weight)))
    return unravel(total)
