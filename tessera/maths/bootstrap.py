"""Values of next observations, without a second pass of the network over all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def next_values(
    value: Callable[[Any], jax.Array], values: jax.Array, next_observations: Any, truncated: jax.Array
) -> jax.Array:
    """Value each step's next observation, for one unroll of several environments.

    Within an episode the next observation is the next row's, whose value is known. Only the last row's, and those where
    an episode was truncated, must be computed: one row of each environment at a time, until none is left. Where an
    episode terminated, the result has no meaning and must not be used.

    Args:
        value: maps observations [n, ...] to values [n, ...].
        values: [T, n, ...] values of the observations that the steps started from; a further axis is of agents.
        next_observations: [T, n, ...] observations that the steps led to, before any autoreset.
        truncated: [T, n].

    Returns:
        [T, n, ...] values of `next_observations`.
    """
    shifted = jnp.concatenate([values[1:], jnp.zeros_like(values[:1])])
    missing = truncated.at[-1].set(True)

    def fill(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        result, missing = carry
        t = jnp.argmax(missing, axis=0)
        now = (jnp.arange(missing.shape[0])[:, None] == t) & missing
        row = jax.tree.map(lambda x: jax.vmap(lambda column, i: column[i], (1, 0))(x, t), next_observations)
        return jnp.where(now.reshape(now.shape + (1,) * (values.ndim - 2)), value(row), result), missing & ~now

    return jax.lax.while_loop(lambda c: jnp.any(c[1]), fill, (shifted, missing))[0]
