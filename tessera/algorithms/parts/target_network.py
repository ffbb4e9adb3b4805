"""Target networks: a slow copy of the params."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from tessera.algorithms.contract import State


def followed(state: State) -> Any:
    """The params that the target follows: all, or the labelled parts that it has."""
    if isinstance(state.target, dict) and isinstance(state.params, dict):
        return {label: state.params[label] for label in state.target}
    return state.params


def update_target(state: State, period: int, polyak: float = 0.0) -> State:
    """Update the target after a step of the params: by a copy every `period` steps or, with `polyak`, a little always.

    Element-wise, and by the global clock, so that every shard of a server does the same.
    """
    if polyak:
        target = jax.tree.map(lambda t, p: t + polyak * (p - t), state.target, followed(state))
    else:
        copy = state.clock.modulo(period) == period - 1
        target = jax.tree.map(lambda t, p: jnp.where(copy, p, t), state.target, followed(state))
    return state._replace(target=target)


def follow_params(state: State, gradients: jax.Array, period: int, polyak: float = 0.0) -> State:
    """Update the target as if so many gradients had been applied here: no step of it is missed."""
    if polyak:
        share = 1 - (1 - polyak) ** gradients
        target = jax.tree.map(lambda t, p: (t + share * (p - t)).astype(t.dtype), state.target, followed(state))
    else:
        copy = state.clock.modulo(period).astype(jnp.int32) + gradients >= period
        target = jax.tree.map(lambda t, p: jnp.where(copy, p, t), state.target, followed(state))
    return state._replace(target=target)
