"""Losses that are too large to be learned from: above their running mean by several deviations (Nair et al., 2015)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from tessera.maths.statistics import Moments, merge, variance

FORGET = 0.999
"""What a loss counts for after one more, in the running mean."""
ENOUGH = 50.0
"""Losses that must have been seen, as that mean counts them, before one of them can be an outlier."""


def is_outlier(usual: Moments, loss: jax.Array, deviations: float) -> jax.Array:
    """Whether a loss lies too far above the running mean, once that means anything."""
    return (usual.count >= ENOUGH) & (loss > usual.mean + deviations * jnp.sqrt(variance(usual)))


def with_loss(usual: Moments, loss: jax.Array) -> Moments:
    """The running mean with one more loss in it; what it has seen it forgets slowly."""
    one = Moments(jnp.ones_like(usual.count), loss, jnp.zeros_like(loss))
    return merge(usual._replace(count=usual.count * FORGET), one)
