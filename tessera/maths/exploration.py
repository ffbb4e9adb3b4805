"""Exploration: schedules and rates, and epsilon-greedy actions."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def linear(progress: jax.Array | float, start: float, end: float | jax.Array, fraction: float = 1.0) -> jax.Array:
    """Interpolate from `start` to `end` over the first `fraction` of a run; `end` from then on.

    Args:
        progress: [...] how much of the run is over, from 0 to 1.
        start: value at the beginning.
        end: value from `fraction` on.
        fraction: of the run, above 0.
    """
    return start + (end - start) * jnp.clip(jnp.asarray(progress) / fraction, 0.0, 1.0)


def epsilon_greedy(key: jax.Array, q_values: jax.Array, epsilon: jax.Array | float) -> jax.Array:
    """Take the best action, or with probability `epsilon` a random one: q [..., n], epsilon [...] -> int32 [...].

    One uniform number decides both: where it is below `epsilon`, its quotient by `epsilon` is uniform again.
    """
    n = q_values.shape[-1]
    uniform = jax.random.uniform(key, q_values.shape[:-1], q_values.dtype)
    epsilon = jnp.asarray(epsilon, q_values.dtype)
    random = jnp.minimum((uniform / jnp.where(epsilon > 0, epsilon, 1) * n).astype(jnp.int32), n - 1)
    return jnp.where(uniform < epsilon, random, jnp.argmax(q_values, axis=-1).astype(jnp.int32))


def apex_epsilon(index: jax.Array | int, n: int, base: float = 0.4, alpha: float = 7.0) -> jax.Array:
    """Ape-X's fixed rate for the actor `index` of `n`: base^(1 + alpha * index / (n - 1)) (Horgan et al., 2018)."""
    return base ** (1.0 + alpha * jnp.asarray(index, jnp.result_type(float)) / max(n - 1, 1))


def mixed_epsilon(index: jax.Array | int) -> jax.Array:
    """Final rate of the actor `index`: 0.1, 0.01 or 0.5 with probabilities 0.4, 0.3 and 0.3 (Mnih et al., 2016).

    It depends on the index alone, so that it is the same wherever the actor runs.
    """
    uniform = jax.random.uniform(jax.random.fold_in(jax.random.key(0), index))
    return jnp.where(uniform < 0.4, 0.1, jnp.where(uniform < 0.7, 0.01, 0.5)).astype(jnp.result_type(float))
