"""Losses that are too large to learn from: above their running mean by several deviations (Nair et al., 2015)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from tessera.maths.statistics import Moments, merge, variance

DECAY = 0.999
"""Factor of a loss's weight in the running mean for each later loss."""
ENOUGH = 50.0
"""Total weight that the running mean must have before any loss can be an outlier."""


def is_outlier(running: Moments, loss: jax.Array, deviations: float) -> jax.Array:
    """Whether a loss exceeds the running mean by this many deviations, once the mean has enough weight."""
    return (running.count >= ENOUGH) & (loss > running.mean + deviations * jnp.sqrt(variance(running)))


def add_loss(running: Moments, loss: jax.Array) -> Moments:
    """Merge one more loss into the running moments, which slowly forget earlier ones."""
    one = Moments(jnp.ones_like(running.count), loss, jnp.zeros_like(loss))
    return merge(running._replace(count=running.count * DECAY), one)
