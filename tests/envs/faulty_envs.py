"""Environments with one fault each, for the tests of checks."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from pettingzoo import ParallelEnv

from tessera import DeviceEnvironment, Discrete, Spec


class Sound(gymnasium.Env):
    """Nothing is wrong with it: five steps of noise."""

    observation_space: Any = spaces.Box(-1, 1, (2,))
    action_space: Any = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        return self.observe(), 1.0, self.time == 5, False, {}

    def observe(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


class NoObservationSpace(Sound):
    observation_space = None


class NoActionSpace(Sound):
    action_space = None


class TextSpace(Sound):
    observation_space = spaces.Text(5)


class WholeBox(Sound):
    action_space = spaces.Box(0, 5, (2,), np.int32)


class FourValues(Sound):
    def step(self, action: Any) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class OnlyObservation(Sound):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0]


class NoSeed(Sound):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class NoInfo(Sound):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0], None


class OtherShape(Sound):
    def observe(self) -> Any:
        return np.zeros(3, np.float32)


class Fractions(Sound):
    observation_space = spaces.Box(0, 255, (2,), np.uint8)

    def observe(self) -> Any:
        return np.float32([0.5, 1.5])


class Words(Sound):
    def observe(self) -> Any:
        return "left"


class NotFinite(Sound):
    def observe(self) -> Any:
        return np.float32([np.nan, 0])


class OutOfBounds(Sound):
    def observe(self) -> Any:
        return np.float32([3, 0])


class Doubles(Sound):
    def observe(self) -> Any:
        return self.np_random.uniform(-1, 1, 2)


class NoReward(Sound):
    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, None, *rest


class RewardList(Sound):
    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, np.ones(3), *rest


class NaNReward(Sound):
    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, float("nan"), *rest


class NumberFlags(Sound):
    def step(self, action: Any) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, int(terminated), None, info


class BothFlags(Sound):
    def step(self, action: Any) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, terminated, info


class SeedIgnored(Sound):
    def observe(self) -> Any:
        return np.random.default_rng().uniform(-1, 1, 2).astype(np.float32)


class OneSeed(Sound):
    """Any seed gives the same start, and no seed another each time."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=None if seed is None else 5)


class Endless(Sound):
    def step(self, action: Any) -> Any:
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, False, truncated, info


class TooLong(Endless):
    spec = EnvSpec("TooLong-v0", max_episode_steps=20)


class ResetsItself(Sound):
    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        if terminated:
            last = observation
            observation, info = self.reset()
            info = {"final_obs": last}
        return observation, reward, terminated, truncated, info


class StartsAgain(Sound):
    """Resets itself and does not say so."""

    def observe(self) -> Any:
        return np.float32([self.time % 5 / 5, 0])


class AllForbidden(Sound):
    """After four steps."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0], {"action_mask": np.ones(2, np.int8)}

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"action_mask": np.full(2, self.time < 4, np.int8)}


class CannotBeMade(Sound):
    def __init__(self) -> None:
        raise RuntimeError("no licence")


class SoundDevice(DeviceEnvironment):
    """Nothing is wrong with it: five steps of noise."""

    spec = Spec((2,), "float32", Discrete(2), time_limit=5)

    def reset(self, key: Any) -> Any:
        return {"time": jnp.int32(0), "seen": jnp.zeros(2)}, jnp.zeros(2)

    def step(self, state: Any, action: Any, key: Any) -> Any:
        seen = jax.random.uniform(key, (2,))
        time = state["time"] + 1
        return {"time": time, "seen": seen}, seen, jnp.float32(action), time == 5, False


class NoSpec(SoundDevice):
    spec = None  # type: ignore[assignment]


class GymnasiumSpec(SoundDevice):
    spec = Spec((2,), "float32", spaces.Discrete(2))  # type: ignore[arg-type]


class StateShape(SoundDevice):
    def step(self, state: Any, action: Any, key: Any) -> Any:
        state, *rest = super().step({**state, "seen": state["seen"][:2]}, action, key)
        return {**state, "seen": jnp.zeros(3)}, *rest


class StateType(SoundDevice):
    def step(self, state: Any, action: Any, key: Any) -> Any:
        state, *rest = super().step(state, action, key)
        return {**state, "time": state["time"] * 1.0}, *rest


class StateStructure(SoundDevice):
    def step(self, state: Any, action: Any, key: Any) -> Any:
        state, *rest = super().step(state, action, key)
        return {**state, "more": jnp.zeros(1)}, *rest


class PythonIf(SoundDevice):
    def step(self, state: Any, action: Any, key: Any) -> Any:
        if action > 0:
            return super().step(state, 0, key)
        return super().step(state, action, key)


class NumpyCall(SoundDevice):
    def step(self, state: Any, action: Any, key: Any) -> Any:
        return super().step(state, np.clip(np.asarray(action), 0, 1), key)


class OtherObservation(SoundDevice):
    spec = Spec((4,), "float32", Discrete(2))


class WholeObservation(SoundDevice):
    def reset(self, key: Any) -> Any:
        return super().reset(key)[0], jnp.zeros(2, jnp.int32)


class FourDeviceValues(SoundDevice):
    def step(self, state: Any, action: Any, key: Any) -> Any:
        return super().step(state, action, key)[:4]


class OnlyState(SoundDevice):
    def reset(self, key: Any) -> Any:
        return super().reset(key)[0]


class WholeReward(SoundDevice):
    def step(self, state: Any, action: Any, key: Any) -> Any:
        state, observation, _, *rest = super().step(state, action, key)
        return state, observation, action, *rest


class VectorReward(SoundDevice):
    def step(self, state: Any, action: Any, key: Any) -> Any:
        state, observation, _, *rest = super().step(state, action, key)
        return state, observation, jnp.zeros(1), *rest


class RealFlag(SoundDevice):
    def step(self, state: Any, action: Any, key: Any) -> Any:
        state, observation, reward, _, truncated = super().step(state, action, key)
        return state, observation, reward, jnp.float32(0), truncated


class Misspelt(SoundDevice):
    def step(self, state: Any, action: Any, key: Any) -> Any:
        return super().step(state["tmie"], action, key)


class NotFiniteDevice(SoundDevice):
    def step(self, state: Any, action: Any, key: Any) -> Any:
        state, observation, *rest = super().step(state, action, key)
        return state, observation / jnp.float32(0), *rest


class TooLongDevice(SoundDevice):
    spec = Spec((2,), "float32", Discrete(2), time_limit=3)


class EndlessDevice(SoundDevice):
    spec = Spec((2,), "float32", Discrete(2))

    def step(self, state: Any, action: Any, key: Any) -> Any:
        state, observation, reward, _, truncated = super().step(state, action, key)
        return state, observation, reward, jnp.bool_(False), truncated


class BothDevice(SoundDevice):
    def step(self, state: Any, action: Any, key: Any) -> Any:
        state, observation, reward, terminated, _ = super().step(state, action, key)
        return state, observation, reward, terminated, terminated


class SoundTeam(ParallelEnv):
    """Nothing is wrong with it: five steps of two agents."""

    metadata: dict[str, Any] = {"name": "team"}  # noqa: RUF012
    render_mode = None
    possible_agents = ["ann", "bob"]  # noqa: RUF012

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-1, 1, (2,))

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.time = list(self.possible_agents), 0
        return self.observe(), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        self.time += 1
        over = self.time == 5
        each = {agent: {} for agent in self.agents}
        result = self.observe(), dict.fromkeys(each, 1.0), dict.fromkeys(each, over), dict.fromkeys(each, False), each
        self.agents = [] if over else self.agents
        return result

    def observe(self) -> Any:
        return {agent: np.zeros(2, np.float32) for agent in self.agents}


class TeamWithoutSpaces(SoundTeam):
    def observation_space(self, agent: str) -> Any:
        return {"ann": spaces.Box(-1, 1, (2,))}[agent]


class TeamWithoutAgents(SoundTeam):
    possible_agents: list[str] = []  # noqa: RUF012


class TeamOfFour(SoundTeam):
    def step(self, actions: Any) -> Any:
        return super().step(actions)[:4]


class TeamWithoutObservation(SoundTeam):
    def observe(self) -> Any:
        return {"ann": np.zeros(2, np.float32)}


class TeamShape(SoundTeam):
    def observe(self) -> Any:
        return {agent: np.zeros(3, np.float32) for agent in self.agents}


class TeamReward(SoundTeam):
    def step(self, actions: Any) -> Any:
        observations, rewards, *rest = super().step(actions)
        return observations, dict.fromkeys(rewards, float("inf")), *rest


class TeamReset(SoundTeam):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed)[0]
