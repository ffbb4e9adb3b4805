"""Windows of n steps: the rows that value-based algorithms store, and the steps they carry from unroll to unroll."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tessera.algorithms.contract import Transition
from tessera.envs.base import Spec
from tessera.maths.returns import n_step


class Row(NamedTuple):
    """One n-step window as it is stored."""

    observation: jax.Array
    action: jax.Array
    reward: jax.Array
    """Discounted sum over the window."""
    discount: jax.Array
    """Factor of the bootstrap: 0 if the episode terminated inside the window."""
    bootstrap: jax.Array
    """The observation that the window led to."""
    legal: Any = None
    """Which actions are allowed there; None if all always are."""


class ValueMemory(NamedTuple):
    """What acting carries from step to step; () for what is not needed."""

    window: Any = ()
    """The last steps, whose windows are not full yet or with which the next sequence begins."""
    exploration: Any = ()
    """The environment's own exploration rate, where rates differ."""
    carry: Any = ()
    """State of the network's core, if it has one."""


def invalid_steps(world: Spec, actions: jax.Array, extras: Any = ()) -> Transition:
    """Steps that were never played, one for each of `actions`; all are marked invalid."""
    n = actions.shape[0]
    observation = world.zeros(jnp, n)
    flag, reward = jnp.zeros(n, bool), jnp.zeros(n, jnp.result_type(float))
    legal = jnp.ones((n, world.alternatives), bool) if world.restricted else None
    ends = (reward, flag, flag, observation, flag, jnp.zeros(n, jnp.int32))
    turns = {"player": jnp.zeros(n, jnp.int32), "turn": reward} if world.players > 1 else {}
    return Transition(observation, actions, extras, *ends, legal=legal, next_legal=legal, **turns)


def append_unroll(before: Transition, trajectory: Transition) -> tuple[Transition, Transition]:
    """Append an unroll to the k steps before it: all steps, and the last k of them for the next unroll.

    Extras are kept if the steps before have any.
    """
    valid = jnp.ones(trajectory.reward.shape, bool) if trajectory.valid is None else trajectory.valid
    extras = trajectory.extras if before.extras else ()
    steps = jax.tree.map(lambda *x: jnp.concatenate(x), before, trajectory._replace(valid=valid, extras=extras))
    return steps, jax.tree.map(lambda x: x[trajectory.reward.shape[0] :], steps)


def n_step_rows(trajectory: Transition, gamma: float, n: int) -> Row:
    """Make rows of n steps from T + n - 1 consecutive transitions of one environment, one for each of the first T."""
    t = trajectory
    window = n_step(t.reward, t.terminated, t.truncated, gamma if t.turn is None else gamma * t.turn, n)
    count = window.reward.shape[0]
    bootstrap, legal = jax.tree.map(lambda x: x[window.last], (t.next_observation, t.next_legal))
    observation, action = jax.tree.map(lambda x: x[:count], (t.observation, t.action))
    return Row(observation, action, window.reward, window.discount, bootstrap, legal)
