"""Environments whose every number is known beforehand, for the tests of the adapters."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tessera.envs import DeviceEnvironment, Discrete, Spec


class Counter(gymnasium.Env):
    """Observes 10 * episode + step and earns the step's number; every episode has three steps."""

    observation_space: spaces.Space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space: spaces.Space = spaces.Discrete(2)

    def __init__(self, ending: str = "terminated") -> None:
        self._ending, self._episode, self._step = ending, -1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self._episode, self._step = self._episode + 1, 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self._step += 1
        ended = self._step == 3
        return (
            self._observe(),
            float(self._step),
            ended and self._ending == "terminated",
            ended and self._ending == "truncated",
            {},
        )

    def _observe(self) -> Any:
        return np.array([10.0 * self._episode + self._step])


class Reusing(Counter):
    """Gives the same array again and again, and writes to it."""

    def __init__(self) -> None:
        super().__init__()
        self._buffer = np.zeros(1)

    def _observe(self) -> Any:
        self._buffer[0] = 10.0 * self._episode + self._step
        return self._buffer


class Echo(gymnasium.Env):
    """Observes samples of any space, and keeps the actions it was given."""

    def __init__(self, observes: spaces.Space, takes: spaces.Space) -> None:
        self.observation_space, self.action_space = observes, takes
        self.seen: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert self.action_space.contains(action), action
        self.seen.append(action)
        return self.observation_space.sample(), 0.0, False, False, {}


class LinkSpec(DeviceEnvironment):
    """A device environment of one's own: walks on, and ends at `length`."""

    name = "line"
    spec = Spec((), "float32", Discrete(2))

    def __init__(self, length: float = 3.0) -> None:
        self.length = length

    def reset(self, key: Any) -> tuple[Any, Any]:
        return 0.0, 0.0

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, Any, Any, Any, Any]:
        state = state + 1.0
        return state, state, 1.0, state >= self.length, False


class Quacks:
    """Has what a device environment must have, without saying that it is one."""

    spec = Spec((), "float32", Discrete(2))
    reset = LinkSpec.reset
    step = LinkSpec.step


def register_counters() -> None:
    """Register counters with a vector version in each autoreset mode."""
    for mode in AutoresetMode:

        def vector(num_envs: int, ending: str = "terminated", mode: AutoresetMode = mode, **_: Any) -> SyncVectorEnv:
            return SyncVectorEnv([lambda: Counter(ending)] * num_envs, autoreset_mode=mode)

        name = f"tessera/Counter{mode.name}-v0"
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=Counter, vector_entry_point=vector)
