"""Environments in which some actions are not allowed, and playing one of them ends the run."""

from typing import Any, ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from tessera.envs import DeviceEnvironment, Discrete, MultiDiscrete, Spec

STEPS = 12


class Forbidding(DeviceEnvironment):
    """A random half of 5 actions is allowed at each step; the highest of them is right. Others make the reward NaN.

    Every second episode ends by termination, in a state where nothing is allowed any more, the rest by truncation.
    """

    name = "forbidding"
    spec = Spec((6,), "float32", Discrete(5))

    def _state(self, key: Any, step: Any) -> tuple[Any, Any]:
        keys = jax.random.split(key)
        legal = jax.random.bernoulli(keys[0], 0.5, (5,)).at[jax.random.randint(keys[1], (), 0, 5)].set(True)
        state = {"legal": legal, "step": step, "key": jax.random.key_data(key)}
        return state, jnp.append(legal.astype(jnp.float32), step / STEPS).astype(jnp.float32)

    def reset(self, key: Any) -> tuple[Any, Any]:
        return self._state(key, jnp.int32(0))

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, ...]:
        right = 4 - jnp.argmax(state["legal"][::-1])
        reward = jnp.where(state["legal"][action], (action == right).astype(float), jnp.nan)
        after, observation = self._state(key, state["step"] + 1)
        over = after["step"] >= STEPS
        terminated = over & (jax.random.randint(key, (), 0, 2) == 0)
        after["legal"] = after["legal"] & ~terminated
        return after, observation, reward, terminated, over & ~terminated

    def legal(self, state: Any) -> Any:
        return state["legal"]


class ForbiddingPairs(Forbidding):
    """The same with two choices at once, of 2 and of 3."""

    spec = Spec((6,), "float32", MultiDiscrete((2, 3)))

    def _state(self, key: Any, step: Any) -> tuple[Any, Any]:
        state, _ = super()._state(key, step)
        legal = state["legal"].at[jax.random.randint(key, (), 0, 2)].set(True)
        state["legal"] = legal.at[jax.random.randint(key, (), 2, 5)].set(True)
        return state, jnp.append(state["legal"].astype(jnp.float32), step / STEPS).astype(jnp.float32)

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, ...]:
        allowed = state["legal"][action[0]] & state["legal"][2 + action[1]]
        after, observation, _, terminated, truncated = super().step(state, jnp.argmax(state["legal"]), key)
        return after, observation, jnp.where(allowed, 1.0, jnp.nan).astype(float), terminated, truncated


class ForbiddingHost(gymnasium.Env):
    """The same for Gymnasium; another action raises an error."""

    observation_space = spaces.Box(0.0, 1.0, (6,), np.float32)
    action_space = spaces.Discrete(5, start=3)

    def _seen(self) -> tuple[np.ndarray, dict[str, Any]]:
        self._legal = self.np_random.integers(0, 2, 5).astype(np.int8)
        self._legal[self.np_random.integers(0, 5)] = 1
        return np.append(self._legal, self._step / STEPS).astype(np.float32), {"action_mask": self._legal}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self._step = 0
        return self._seen()

    def step(self, action: Any) -> tuple[Any, ...]:
        if not self._legal[action - 3]:
            raise RuntimeError(f"action {action} is not allowed")
        reward = float(action - 3 == np.flatnonzero(self._legal).max())
        self._step += 1
        observation, info = self._seen()
        over = self._step >= STEPS
        ends = over and bool(self.np_random.integers(0, 2))
        return observation, reward, ends, over and not ends, info


class Signs(Forbidding):
    """A picture and a vector in one observation: the column that is lit, plus the vector's entry, is right."""

    name = "signs"
    spec = Spec({"picture": (5, 5, 2), "shift": {"by": (3,)}}, "float32", Discrete(3))

    def _state(self, key: Any, step: Any) -> tuple[Any, Any]:
        lit, by = jax.random.randint(key, (2,), 0, 3)
        picture = jnp.zeros((5, 5, 2), jnp.float32).at[:, lit, 0].set(1.0)
        state = {"right": (lit + by) % 3, "step": step}
        return state, {"picture": picture, "shift": {"by": jax.nn.one_hot(by, 3, dtype=jnp.float32)}}

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, ...]:
        after, observation = self._state(key, state["step"] + 1)
        reward = jnp.where(action == (state["right"] + 1) % 3, jnp.nan, (action == state["right"]).astype(float))
        return after, observation, reward, jnp.zeros((), bool), after["step"] >= STEPS

    def legal(self, state: Any) -> Any:
        return jnp.arange(3) != (state["right"] + 1) % 3


class SignsHost(gymnasium.Env):
    """The same for Gymnasium, with bytes for the picture, a Discrete part, and no mask."""

    observation_space = spaces.Dict(
        {
            "picture": spaces.Box(0, 255, (5, 5, 2), np.uint8),
            "shift": spaces.Tuple([spaces.Discrete(3, start=1), spaces.Box(-1, 1, (2,), np.float64)]),
        }
    )
    action_space = spaces.Discrete(3)

    def _seen(self) -> Any:
        lit, by = self.np_random.integers(0, 3, 2)
        self._right = (lit + by) % 3
        picture = np.zeros((5, 5, 2), np.uint8)
        picture[:, lit, 0] = 255
        return {"picture": picture, "shift": (by + 1, np.array([self._step / STEPS, 0.5]))}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self._step = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, ...]:
        reward = float(action == self._right)
        self._step += 1
        return self._seen(), reward, False, self._step >= STEPS, {}


class ForbiddingTeam(ParallelEnv):
    """Two agents of PettingZoo, the second of whom drops out early; masks are in `info`, or in what is observed."""

    metadata: ClassVar[dict[str, str]] = {"name": "forbidding_team"}

    def __init__(self, observed: bool = False) -> None:
        self.possible_agents, self.agents, self._observed = ["a", "b"], [], observed
        self._random = np.random.default_rng()

    def observation_space(self, agent: str) -> Any:
        seen = spaces.Box(0.0, 1.0, (4,), np.float32)
        mask = spaces.Box(0, 1, (4,), np.int8)
        return spaces.Dict({"observation": seen, "action_mask": mask}) if self._observed else seen

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(4)

    def _seen(self) -> tuple[Any, Any]:
        self._legal = {agent: self._random.integers(0, 2, 4).astype(np.int8) for agent in self.agents}
        for mask in self._legal.values():
            mask[self._random.integers(0, 4)] = 1
        observed: dict[str, Any] = {agent: mask.astype(np.float32) for agent, mask in self._legal.items()}
        if self._observed:
            both = {a: {"observation": observed[a], "action_mask": self._legal[a]} for a in self.agents}
            return both, {agent: {} for agent in self.agents}
        return observed, {agent: {"action_mask": mask} for agent, mask in self._legal.items()}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.agents, self._step = list(self.possible_agents), 0
        return self._seen()

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        assert set(actions) == set(self.agents)
        for agent, action in actions.items():
            if not self._legal[agent][action]:
                raise RuntimeError(f"{action} is not allowed for {agent}")
        rewards = {agent: float(a == np.flatnonzero(self._legal[agent]).max()) for agent, a in actions.items()}
        self._step += 1
        observed, infos = self._seen()
        ends = {agent: self._step >= (STEPS // 2 if agent == "b" else STEPS) for agent in self.agents}
        self.agents = [agent for agent in self.agents if not ends[agent]]
        return observed, rewards, ends, dict.fromkeys(ends, False), infos
