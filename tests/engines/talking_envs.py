"""An environment that prints."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Talking(gymnasium.Env):
    """Ends after a few steps, and says hello before each episode."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        print("hello from an environment", flush=True)
        self.left = 5
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        return np.zeros(2, np.float32), 1.0, self.left == 0, False, {}
