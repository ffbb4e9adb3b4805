"""Target networks: a slow copy of the params."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from tessera.algorithms.contract import State


def update_target(state: State, period: int, polyak: float = 0.0) -> State:
    """Update the target after a step of the params: by a copy every `period` steps or, with `polyak`, a little always.

    Element-wise, and by the global clock, so that every shard of a server does the same.
    """
    if polyak:
        target = jax.tree.map(lambda t, p: t + polyak * (p - t), state.target, state.params)
    else:
        copy = (state.clock.applies + 1) % period == 0
        target = jax.tree.map(lambda t, p: jnp.where(copy, p, t), state.target, state.params)
    return state._replace(target=target)


def follow_params(state: State, applies: jax.Array, period: int, polyak: float = 0.0) -> State:
    """Update the target as if all steps from the clock up to `applies` had been taken here: none of them is missed."""
    if polyak:
        share = 1 - (1 - polyak) ** (applies - state.clock.applies)
        target = jax.tree.map(lambda t, p: (t + share * (p - t)).astype(t.dtype), state.target, state.params)
    else:
        copy = applies // period > state.clock.applies // period
        target = jax.tree.map(lambda t, p: jnp.where(copy, p, t), state.target, state.params)
    return state._replace(target=target)
