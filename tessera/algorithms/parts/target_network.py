"""Target networks: a slow copy of the params."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from tessera.algorithms.types import State


def followed(state: State, period: int, polyak: float = 0.0) -> State:
    """Let the target follow params that have just made a step: by a copy every `period` steps, or always by a little.

    Element-wise, and by the clock that counts all steps, so it is the same for shards of a server.
    """
    if polyak:
        target = jax.tree.map(lambda t, p: t + polyak * (p - t), state.target, state.params)
    else:
        copy = (state.clock.applies + 1) % period == 0
        target = jax.tree.map(lambda t, p: jnp.where(copy, p, t), state.target, state.params)
    return state._replace(target=target)
