"""An environment that waits for something else than a core, for a time with a long tail."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np


class SleepingEnv(gymnasium.Env):
    """CartPole's shapes, and a step that sleeps: for `mean` seconds on average, now and then ten times as long."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, mean: float = 0.0005) -> None:
        self.mean, self._steps = mean, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Begin an episode of 200 steps."""
        super().reset(seed=seed)
        self._steps = 0
        return self.np_random.uniform(-1, 1, 4).astype(np.float32), {}

    def pause(self) -> float:
        """Seconds of one step."""
        return float(self.np_random.lognormal(np.log(self.mean) - 0.5, 1.0))

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Sleep, and say something at random; the right action is the sign of the first number."""
        time.sleep(self.pause())
        self._steps += 1
        observation = self.np_random.uniform(-1, 1, 4).astype(np.float32)
        return observation, float(action == (observation[0] > 0)), self._steps >= 200, False, {}


class BimodalEnv(SleepingEnv):
    """Sleeps for a fifth of a millisecond, and in one step of ten for 3 milliseconds."""

    def __init__(self, short: float = 0.0002, long: float = 0.003, often: float = 0.1) -> None:
        super().__init__()
        self.short, self.long, self.often = short, long, often

    def pause(self) -> float:
        """Seconds of one step."""
        return self.long if self.np_random.uniform() < self.often else self.short
