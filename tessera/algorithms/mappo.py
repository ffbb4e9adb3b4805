"""PPO for several agents with a centralised value function (Yu et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from tessera.algorithms.contract import Feedback, Transition, View
from tessera.algorithms.parts.actor_critic_types import ActorCriticMemory, Batch, Summary, UnrollEstimates
from tessera.algorithms.ppo import PPO
from tessera.envs.base import Box, Spec
from tessera.maths.distributions import Distribution
from tessera.networks import TeamActorCritic
from tessera.stores.base import Experience
from tessera.support.fields import SET_BY_FRAMEWORK


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
    own: tuple[int, ...] | None = field(default=None, kw_only=True, repr=False, metadata=SET_BY_FRAMEWORK)
    """Agents that it acts and learns for, as replicas share them out; None: all."""

    @property
    def apart(self) -> int:
        """Agents with params of their own."""
        return self.world.agents if self.separate else 0

    def only(self, agents: tuple[int, ...]) -> Self:
        """Return the same for some agents; what all agents share, such as moments, is shared all the same."""
        return replace(self, own=agents)

    @property
    def agents(self) -> int:
        """Agents that it acts for."""
        return self.world.agents if self.own is None else len(self.own)

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
        return TeamActorCritic(self.world, *shape, self.separate, self.central, self.own)

    def draw(self, distribution: Distribution, key: jax.Array) -> Any:
        """An action for each agent; those who learn apart have random numbers of their own."""
        if not self.separate:
            return super().draw(distribution, key)
        keys = jax.random.split(key, self.world.agents)
        return jax.vmap(lambda one, k: one.sample(k))(distribution, self._mine(keys, 0))

    def _mine(self, x: Any, axis: int) -> Any:
        """What belongs to the agents that this is for."""
        return x if self.own is None else x[(slice(None),) * axis + (np.asarray(self.own),)]

    def digest(self, view: View, memory: ActorCriticMemory, trajectory: Transition) -> tuple[Experience, Any]:
        """Keep rewards and marks of its agents, and what everybody saw."""
        extras, alive = trajectory.extras, trajectory.alive
        if alive is not None:
            alive, extras = self._mine(alive, 1), extras._replace(alive=self._mine(extras.alive, 1))
        reward = self._mine(trajectory.reward, 1)
        return super().digest(view, memory, trajectory._replace(reward=reward, alive=alive, extras=extras))

    def summarise(self, rows: Transition, advantage: jax.Array) -> Summary:
        """Moments of what its agents saw and earned."""
        return super().summarise(rows._replace(observation=self._mine(rows.observation, 2)), advantage)

    def gradient(self, view: View, batch: Batch, summary: Summary, key: jax.Array) -> tuple[Any, Feedback]:
        """Gradient of the mean over all agents, for the params of its own."""
        gradients, feedback = super().gradient(view, batch, summary, key)
        share = self.agents / self.world.agents
        return jax.tree.map(lambda g: g * share, gradients), feedback

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

    def estimate(self, played: UnrollEstimates, rows: Transition) -> tuple[jax.Array, jax.Array]:
        """Advantages and targets of every agent, [T, n, agents] each; a truncation is everybody's."""
        truncated = jnp.broadcast_to(rows.truncated[..., None], rows.reward.shape)
        return super().estimate(played, rows._replace(truncated=truncated))
