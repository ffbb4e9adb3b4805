"""Environments that tell numbers in `info`, all known beforehand: every episode has three steps."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from tessera.envs import DeviceEnvironment, Discrete, Spec

STEPS = 3


class Telling(gymnasium.Env):
    """Tells the step, a number that is missing in the second step, and a success in the last; and other things."""

    observation_space: spaces.Space = spaces.Box(0, STEPS, (1,), np.float32)
    action_space: spaces.Space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self._step, self._info = 0, {"step": 100.0, "begun": 1}
        return np.zeros(1, np.float32), self._info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self._step += 1
        over = self._step == STEPS
        self._info.clear()  # the same dict at every step, as some environments have it
        self._info |= {"step": np.array(float(self._step)), "gap": np.nan if self._step == 2 else 1.0}
        self._info |= {"word": "7", "list": [1.0], "array": np.ones(2), "huge": np.inf, "TimeLimit.truncated": False}
        if over:
            self._info["success"] = True
        return np.full(1, self._step, np.float32), 1.0, False, over, self._info


class TellingDevice(DeviceEnvironment):
    """The same in JAX, with a number that is drawn."""

    name = "telling"
    spec = Spec((1,), "float32", Discrete(2))

    def reset(self, key: Any) -> tuple[Any, Any]:
        return (jnp.int32(0), jnp.zeros((), float)), jnp.zeros(1, jnp.float32)

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, ...]:
        step = state[0] + 1
        draw = jax.random.normal(key, (), float)
        return (step, draw), jnp.full(1, step, jnp.float32), draw, False, step == STEPS

    def info(self, state: Any) -> dict[str, Any]:
        step, draw = state
        gap = jnp.where(step == 2, jnp.nan, 1.0)
        return {"step": step, "draw": draw, "gap": gap, "success": jnp.where(step == STEPS, 1.0, jnp.nan),
                "array": jnp.ones(2), "key": jax.random.key(0)}  # fmt: skip


class Silent(TellingDevice):
    """The same without a word."""

    def info(self, state: Any) -> dict[str, Any]:
        return {}


class TellingTeam(ParallelEnv):
    """Two agents; the first tells 1, the second 3, in the only step of an episode."""

    metadata: dict[str, Any] = {"name": "telling"}  # noqa: RUF012
    possible_agents = ["ann", "bob"]  # noqa: RUF012
    render_mode = None

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(0, 1, (1,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self.agents = list(self.possible_agents)
        return self._each(np.zeros(1, np.float32)), self._each({"score": 100.0})

    def step(self, actions: dict[str, Any]) -> tuple[dict, ...]:
        info = {"ann": {"score": 1}, "bob": {"score": 3}}
        numbers = (self._each(0.0), self._each(False), self._each(True))
        return self._each(np.zeros(1, np.float32)), *numbers, info

    def _each(self, value: Any) -> dict[str, Any]:
        return dict.fromkeys(self.possible_agents, value)
