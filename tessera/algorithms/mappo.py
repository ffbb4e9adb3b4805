"""PPO for several agents with a centralised value function (Yu et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from tessera.algorithms.base import Transition
from tessera.algorithms.ppo import PPO
from tessera.algorithms.rows import Played
from tessera.envs.base import Box, Spec
from tessera.networks import TeamActorCritic


@dataclass(frozen=True)
class MAPPO(PPO):
    """Every agent's policy reads what it sees itself; every agent's value is of what all of them see.

    All arrays of PPO have one more axis, the agents'. What an agent that has dropped out did is not learned from.
    """

    name: ClassVar[str] = "mappo"
    summary: ClassVar[str] = "PPO for several agents: own observations act, a centralised value function judges"
    teams: ClassVar[bool] = True

    gamma: float = 0.95
    """Discount per step; worlds of particles are over after 25."""
    separate: bool = False
    """Give every agent params of its own; by default all share the same, and are told which one they are."""
    central: bool = True
    """Value what all agents see together; without, each agent what it sees itself (independent PPO)."""

    def chosen(self, spec: Spec) -> dict[str, Any]:
        """Unrolls of several episodes, many epochs of few minibatches, and scaled rewards, as in the paper."""
        return {
            "unroll": 50,
            "learning_rate": 7e-4,
            "epochs": 10,
            "minibatches": 4,
            "widths": (128, 128),
            "normalise_rewards": True,
            "normalise_observations": isinstance(spec.actions, Box),
        }

    @property
    def network(self) -> Any:
        """The networks of all agents."""
        shape = (self.widths, self.activation, self.core, self.core_width)
        return TeamActorCritic(self.world, *shape, self.separate, self.central)

    def usable(self, rows: Transition) -> Transition:
        """Marks and ends for each agent: one that drops out ends its episode by itself, and is not there after."""
        rows = super().usable(rows)
        each = rows.reward.shape

        def spread(x: jax.Array) -> jax.Array:
            return jnp.broadcast_to(x[..., None], each)

        terminated = spread(rows.terminated)
        if rows.alive is None:
            return rows._replace(terminated=terminated, valid=None if rows.valid is None else spread(rows.valid))
        acted = rows.extras.alive
        over = spread(rows.terminated | rows.truncated)
        valid = acted if rows.valid is None else acted & spread(rows.valid)
        return rows._replace(terminated=terminated | (acted & ~rows.alive & ~over), valid=valid)

    def estimate(self, played: Played, rows: Transition) -> tuple[jax.Array, jax.Array]:
        """Advantages and targets of every agent, [T, n, agents] each; a truncation is everybody's."""
        truncated = jnp.broadcast_to(rows.truncated[..., None], rows.reward.shape)
        return super().estimate(played, rows._replace(truncated=truncated))
