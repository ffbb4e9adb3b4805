"""Running means and variances that can be merged in any order (Chan et al., 1983).

The second moment is kept as a mean of squares and merged by ratios of counts, not as a sum: in float32 a sum over 1e9
rows loses small terms, and drifts away from its count.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Moments(NamedTuple):
    """Moments of a population; `mean` and `m2` have the shape of one element, `count` is one number."""

    count: jax.Array  # type: ignore[assignment]  # hides tuple.count, which is never called
    """Number of elements, or their weight, as a float."""
    mean: jax.Array
    m2: jax.Array
    """Second central moment: the mean of squared differences from the mean."""


def no_moments(shape: tuple[int, ...] = (), dtype: jax.typing.DTypeLike = jnp.float32) -> Moments:
    """Moments of an empty population, for elements of `shape`."""
    return Moments(jnp.zeros((), dtype), jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))


def _after(count: jax.Array, like: jax.Array) -> jax.Array:
    """Give `count` trailing axes so that it broadcasts against `like` from the left."""
    return count.reshape(count.shape + (1,) * (like.ndim - count.ndim))


def moments_of(x: jax.Array, axes: int = 1, weight: jax.Array | None = None) -> Moments:
    """Moments over the first `axes` axes of x [*rows, ...], each row counted `weight` [*rows] times (once if None)."""
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    rows = x.shape[:axes]
    weight = jnp.ones(rows, x.dtype) if weight is None else jnp.broadcast_to(weight, rows).astype(x.dtype)
    flat = x.reshape(-1, *x.shape[axes:])
    return merge_all(Moments(weight.reshape(-1), flat, jnp.zeros_like(flat)))


def merge(a: Moments, b: Moments) -> Moments:
    """Moments of both populations together."""
    count = a.count + b.count
    ratio = _after(b.count / jnp.where(count > 0, count, 1), a.mean)
    delta = b.mean - a.mean
    m2 = a.m2 + ratio * (b.m2 - a.m2) + ratio * (1 - ratio) * jnp.square(delta)
    return Moments(count, a.mean + ratio * delta, m2)


def merge_all(stacked: Moments) -> Moments:
    """Moments of all populations along the leading axis together: count [k], mean and m2 [k, ...]."""
    count = jnp.sum(stacked.count, axis=0)
    ratio = _after(stacked.count / jnp.where(count > 0, count, 1), stacked.mean)
    # Elements without weight may be nan, which a product with 0 would keep.
    mean = jnp.sum(jnp.where(ratio > 0, ratio * stacked.mean, 0), axis=0)
    spread = stacked.m2 + jnp.square(stacked.mean - mean)
    return Moments(count, mean, jnp.sum(jnp.where(ratio > 0, ratio * spread, 0), axis=0))


def merge_stacked(statistics: Any) -> Any:
    """Statistics of all data, from those of its parts along the leading axis: moments are merged, others averaged."""

    def merged(x: Any) -> Any:
        return merge_all(x) if isinstance(x, Moments) else jnp.mean(x, axis=0).astype(x.dtype)

    return jax.tree.map(merged, statistics, is_leaf=lambda x: isinstance(x, Moments))


def variance(moments: Moments) -> jax.Array:
    """Variance of the population, [...]; 1 if it is empty."""
    return jnp.where(_after(moments.count, moments.m2) > 0, moments.m2, 1)


def normalise(x: jax.Array, moments: Moments, clip: float | None = 10.0, epsilon: float = 1e-8) -> jax.Array:
    """Shift and scale x [..., *element] to mean 0 and variance 1, then clip it to +-`clip` unless that is None."""
    y = (x - moments.mean) * jax.lax.rsqrt(variance(moments) + epsilon)
    return y if clip is None else jnp.clip(y, -clip, clip)
