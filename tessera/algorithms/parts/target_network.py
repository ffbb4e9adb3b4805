"""Target networks: a slow copy of the params."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from tessera.algorithms.contract import State


def update_target(state: State, period: int, polyak: float = 0.0) -> State:
    """Update the target after a step of the params: by a copy every `period` steps or, with `polyak`, a little always.

    Element-wise, and by the global clock, so that every shard of a server does the same.
    """
    if polyak:
        target = jax.tree.map(lambda t, p: t + polyak * (p - t), state.target, state.params)
    else:
        copy = state.clock.modulo(period) == period - 1
        target = jax.tree.map(lambda t, p: jnp.where(copy, p, t), state.target, state.params)
    return state._replace(target=target)
