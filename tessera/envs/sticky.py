"""Sticky actions: with some probability the environment repeats the action of the previous step."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tessera.envs.base import Actions, Box, DeviceEnvironment, Discrete, Environment, HostEnvironment
from tessera.errors import TesseraError


def stick(env: Environment, probability: Any) -> Environment:
    """The environment with sticky actions, as Machado et al. (2018) propose and MinAtar plays by default (0.1)."""
    if isinstance(probability, bool) or not isinstance(probability, int | float) or not 0 <= probability < 1:
        raise TesseraError(f"sticky={probability}: give a probability from 0 to below 1, as in sticky=0.1")
    if isinstance(env, HostEnvironment):
        raise TesseraError(
            f"sticky is for environments that are compiled, and {env.name} is not: "
            "Atari's own option is repeat_action_probability"
        )
    if env.spec.agents:
        raise TesseraError(f"sticky is for one agent, and {env.name} has {env.spec.agents}")
    return Sticky(env, float(probability))


class Stuck(NamedTuple):
    """The state of an environment, and the action that it played last."""

    inner: Any
    action: Any


class Sticky(DeviceEnvironment):
    """A device environment with sticky actions. Each episode begins as if the first of all actions had been played."""

    def __init__(self, env: DeviceEnvironment, probability: float) -> None:
        self._env, self._probability = env, probability
        self.name, self.spec = env.name, env.spec
        self._first = _first_action(env.spec.actions)

    def reset(self, key: Any) -> tuple[Any, Any]:
        """Start an episode: (state, observation)."""
        state, observation = self._env.reset(key)
        return Stuck(state, self._first), observation

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Play one step: (state, observation, reward, terminated, truncated)."""
        chance, key = jax.random.split(key)
        sticks = jax.random.bernoulli(chance, self._probability)
        action = jnp.where(sticks, state.action, action).astype(state.action.dtype)
        inner, *rest = self._env.step(state.inner, action, key)
        observation, reward, terminated, truncated = rest
        return Stuck(inner, action), observation, reward, terminated, truncated

    def restart(self, state: Any, key: Any) -> tuple[Any, Any]:
        """Start the next episode after `state`."""
        inner, observation = self._env.restart(state.inner, key)
        return Stuck(inner, self._first), observation


def _first_action(actions: Actions) -> np.ndarray:
    """The first of all choices, or zeros."""
    if isinstance(actions, Box):
        return np.zeros(actions.shape, np.float32)
    return np.zeros(() if isinstance(actions, Discrete) else (len(actions.choices),), np.int32)
