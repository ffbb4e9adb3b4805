"""What algorithms with a replay store and pass on."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tessera.algorithms.types import Transition
from tessera.envs.base import Spec
from tessera.maths.returns import n_step


class Row(NamedTuple):
    """One n-step window as it is stored."""

    observation: jax.Array
    action: jax.Array
    reward: jax.Array
    discount: jax.Array
    """What the bootstrap is multiplied by: 0 if the episode terminated inside the window."""
    bootstrap: jax.Array
    """The observation that the window led to."""


class ValueMemory(NamedTuple):
    """What acting carries from step to step; () for what is not needed."""

    window: Any = ()
    """The last n - 1 transitions, whose windows are not full yet."""
    exploration: Any = ()
    """By how much this environment explores, where that differs from one to the next."""


class DrawSummary(NamedTuple):
    """What each group tells all others about its rows; () for what is not needed."""

    weight: Any = ()
    """The largest importance weight."""
    loss: Any = ()
    """The mean loss, where outliers are dropped."""


def no_steps(world: Spec, actions: jax.Array) -> Transition:
    """Steps that were never played, and are not valid: as many as there are `actions`."""
    n = actions.shape[0]
    observation = jnp.zeros((n, *world.observation_shape), world.observation_dtype)
    flag, reward = jnp.zeros(n, bool), jnp.zeros(n, jnp.result_type(float))
    return Transition(observation, actions, (), reward, flag, flag, observation, flag, jnp.zeros(n, jnp.int32))


def prolonged(before: Transition, trajectory: Transition) -> tuple[Transition, Transition]:
    """An unroll behind the steps before it, and the last of both: as many, for the next unroll."""
    valid = jnp.ones(trajectory.reward.shape, bool) if trajectory.valid is None else trajectory.valid
    whole = jax.tree.map(lambda *x: jnp.concatenate(x), before, trajectory._replace(valid=valid, extras=()))
    kept = before.reward.shape[0]
    return whole, jax.tree.map(lambda x: x[-kept:], whole)


def windows(trajectory: Transition, gamma: float, n: int) -> Row:
    """Make rows of n steps from T + n - 1 consecutive transitions of one environment, one for each of the first T."""
    t = trajectory
    window = n_step(t.reward, t.terminated, t.truncated, gamma, n)
    begin = window.reward.shape[0]
    bootstrap = t.next_observation[window.last]
    return Row(t.observation[:begin], t.action[:begin], window.reward, window.discount, bootstrap)
