"""Exploration: schedules and rates, and epsilon-greedy actions."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from tessera.maths.losses import select


def linear(progress: jax.Array | float, start: float, end: float | jax.Array, fraction: float = 1.0) -> jax.Array:
    """Interpolate from `start` to `end` over the first `fraction` of a run; `end` from then on.

    Args:
        progress: [...] how much of the run is over, from 0 to 1.
        start: value at the beginning.
        end: value from `fraction` on.
        fraction: of the run, above 0.
    """
    return start + (end - start) * jnp.clip(jnp.asarray(progress) / fraction, 0.0, 1.0)


def best_action(q_values: jax.Array, legal: jax.Array | None = None) -> jax.Array:
    """The action of the highest value among those that are `legal`: [..., n] each -> int32 [...]."""
    if legal is not None:
        q_values = jnp.where(legal, q_values, -jnp.inf)
    return jnp.argmax(q_values, axis=-1).astype(jnp.int32)


def best_value(q_values: jax.Array, legal: jax.Array | None = None) -> jax.Array:
    """The highest value among the actions that are `legal`: [..., n] each -> [...]."""
    if legal is None:
        return q_values.max(-1)
    return select(q_values, best_action(q_values, legal))  # finite even where none is legal, at the end of a game


def epsilon_greedy(
    key: jax.Array, q_values: jax.Array, epsilon: jax.Array | float, legal: jax.Array | None = None
) -> jax.Array:
    """Take the best action, or with probability `epsilon` a random one: q [..., n], epsilon [...] -> int32 [...].

    Actions that are not `legal` [..., n] are never taken. One uniform number decides both: where it is below `epsilon`,
    its quotient by `epsilon` is uniform again.
    """
    n = q_values.shape[-1] if legal is None else legal.sum(-1)
    uniform = jax.random.uniform(key, q_values.shape[:-1], q_values.dtype)
    epsilon = jnp.asarray(epsilon, q_values.dtype)
    random = jnp.minimum((uniform / jnp.where(epsilon > 0, epsilon, 1) * n).astype(jnp.int32), n - 1)
    if legal is not None:  # so far the number among those that are
        random = jnp.argmax(jnp.cumsum(legal, axis=-1) > random[..., None], axis=-1).astype(jnp.int32)
    return jnp.where(uniform < epsilon, random, best_action(q_values, legal))


def apex_epsilon(index: jax.Array | int, n: int, base: float = 0.4, alpha: float = 7.0) -> jax.Array:
    """Ape-X's fixed rate for the actor `index` of `n`: base^(1 + alpha * index / (n - 1)) (Horgan et al., 2018)."""
    return base ** (1.0 + alpha * jnp.asarray(index, jnp.result_type(float)) / max(n - 1, 1))


def mixed_epsilon(index: jax.Array | int) -> jax.Array:
    """Final rate of the actor `index`: 0.1, 0.01 or 0.5 with probabilities 0.4, 0.3 and 0.3 (Mnih et al., 2016).

    It depends on the index alone, so that it is the same wherever the actor runs.
    """
    uniform = jax.random.uniform(jax.random.fold_in(jax.random.key(0), index))
    return jnp.where(uniform < 0.4, 0.1, jnp.where(uniform < 0.7, 0.01, 0.5)).astype(jnp.result_type(float))
