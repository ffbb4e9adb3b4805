"""How value-based algorithms try things out: epsilon-greedy, the same everywhere or by an environment's number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from tessera.algorithms.base import Algorithm, View
from tessera.errors import unknown_name
from tessera.maths.exploration import apex_epsilon, linear, mixed_epsilon

EXPLORATIONS = ("anneal", "ladder", "mixture")


@dataclass(frozen=True)
class ExploringAlgorithm(Algorithm):
    """Fields of exploration, and how much of it there is in which environment."""

    exploration: str = "anneal"
    """anneal: the same rate everywhere, which falls. ladder: a fixed rate that falls from one environment to the next
    (Ape-X). mixture: a rate that falls to 0.1, 0.01 or 0.5 (asynchronous Q-learning)."""
    epsilon_start: float = 1.0
    """Share of random actions at the beginning."""
    epsilon_end: float = 0.05
    """Share of random actions once exploration has fallen, the same everywhere."""
    epsilon_fraction: float = 0.2
    """Part of the run during which exploration falls."""
    ladder_base: float = 0.4
    """Share of random actions in the first environment of a ladder."""
    ladder_exponent: float = 7.0
    """How steep a ladder is: the last environment's share is the first's to the power of one more than this."""

    def check(self) -> None:
        """Refuse what is not known by its name."""
        super().check()
        if self.exploration not in EXPLORATIONS:
            raise unknown_name("exploration", self.exploration, EXPLORATIONS)

    def boldness(self, env_id: jax.Array) -> Any:
        """What environment number `env_id` remembers of its exploration."""
        match self.exploration:
            case "ladder":
                return apex_epsilon(env_id, self.envs, self.ladder_base, self.ladder_exponent)
            case "mixture":
                return mixed_epsilon(env_id)
        return ()

    def epsilon(self, view: View, boldness: Any) -> jax.Array:
        """Share of random actions now."""
        if self.exploration == "ladder":
            return boldness
        end = boldness if self.exploration == "mixture" else self.epsilon_end
        return linear(view.clock.progress, self.epsilon_start, end, self.epsilon_fraction)
