"""PPO for several agents with a centralised value function (Yu et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from tessera.algorithms.contract import Feedback, Transition, View
from tessera.algorithms.parts.actor_critic import Batch, Summary, UnrollEstimates
from tessera.algorithms.parts.actor_critic_acting import ActorCriticMemory
from tessera.algorithms.ppo import PPO
from tessera.envs.base import Box, Spec, Timestep
from tessera.maths.distributions import Distribution
from tessera.networks import TeamActorCritic
from tessera.stores.base import Experience
from tessera.support.fields import SET_BY_FRAMEWORK


@dataclass(frozen=True)
class MAPPO(PPO):
    """Every agent's policy reads its own observation; every agent's value reads the observations of all agents.

    All arrays of PPO get an axis of agents. Steps of an agent that has dropped out are not learned from.
    """

    name: ClassVar[str] = "mappo"
    summary: ClassVar[str] = "PPO for several agents: own observations act, a centralised value function judges"
    teams: ClassVar[bool] = True

    gamma: float = 0.95
    """Discount per step; episodes of particle worlds last 25 steps."""
    separate: bool = False
    """Give every agent params of its own; by default all share one set and read their own number."""
    central: bool = True
    """Value the observations of all agents together; without it, each agent's own (independent PPO)."""
    own: tuple[int, ...] | None = field(default=None, kw_only=True, repr=False, metadata=SET_BY_FRAMEWORK)
    """Agents that it acts and learns for, where replicas divide them; None: all."""

    @property
    def apart(self) -> int:
        """Agents with params of their own."""
        return self.world.agents if self.separate else 0

    def only(self, agents: tuple[int, ...]) -> Self:
        """Return the same for some agents; values that all agents share, such as moments, stay shared."""
        return replace(self, own=agents)

    @property
    def agents(self) -> int:
        """Agents that it acts for."""
        return self.world.agents if self.own is None else len(self.own)

    def defaults_for(self, spec: Spec) -> dict[str, Any]:
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
    def model(self) -> Any:
        """The networks of all agents."""
        shape = (self.widths, self.activation, self.core, self.core_width)
        return TeamActorCritic(self.world, *shape, self.separate, self.central, self.own)

    def sample_action(self, distribution: Distribution, key: jax.Array) -> Any:
        """Sample an action for each agent; agents with params of their own have random numbers of their own."""
        if not self.separate:
            return super().sample_action(distribution, key)
        keys = jax.random.split(key, self.world.agents)
        return jax.vmap(lambda one, k: one.sample(k))(distribution, self._of_own_agents(keys, 0))

    def _of_own_agents(self, x: Any, axis: int) -> Any:
        """Select this algorithm's agents along `axis`."""
        return x if self.own is None else x[(slice(None),) * axis + (np.asarray(self.own),)]

    def legal_actions(self, timestep: Timestep) -> Any:
        """Which actions are allowed for its own agents."""
        return None if timestep.legal is None else self._of_own_agents(timestep.legal, 0)

    def digest(self, view: View, memory: ActorCriticMemory, trajectory: Transition) -> tuple[Experience, Any]:
        """Keep rewards and marks of its own agents, and the observations of all."""
        extras, alive = trajectory.extras, trajectory.alive
        if alive is not None:
            alive, extras = self._of_own_agents(alive, 1), extras._replace(alive=self._of_own_agents(extras.alive, 1))
        reward, legal = self._of_own_agents(trajectory.reward, 1), trajectory.legal
        legal = None if legal is None else self._of_own_agents(legal, 1)
        own = trajectory._replace(reward=reward, alive=alive, legal=legal, extras=extras)
        return super().digest(view, memory, own)

    def mark_valid(self, rows: Transition) -> Transition:
        """Give each agent marks and ends; one that drops out ends its own episode, and later steps are invalid."""
        rows = super().mark_valid(rows)

        def per_agent(x: jax.Array) -> jax.Array:
            return jnp.broadcast_to(x[..., None], rows.reward.shape)

        terminated = per_agent(rows.terminated)
        if rows.alive is None:
            return rows._replace(terminated=terminated, valid=None if rows.valid is None else per_agent(rows.valid))
        acted = rows.extras.alive
        over = per_agent(rows.terminated | rows.truncated)
        valid = acted if rows.valid is None else acted & per_agent(rows.valid)
        return rows._replace(terminated=terminated | (acted & ~rows.alive & ~over), valid=valid)

    def advantages_and_targets(self, estimates: UnrollEstimates, rows: Transition) -> tuple[jax.Array, jax.Array]:
        """Advantages and targets of every agent, [T, n, agents] each; a truncation ends the episode of all agents."""
        truncated = jnp.broadcast_to(rows.truncated[..., None], rows.reward.shape)
        return super().advantages_and_targets(estimates, rows._replace(truncated=truncated))

    def summarise(self, rows: Transition, advantage: jax.Array) -> Summary:
        """Moments of the observations and rewards of its own agents."""
        return super().summarise(rows._replace(observation=self._of_own_agents(rows.observation, 2)), advantage)

    def gradient(self, view: View, batch: Batch, summary: Summary, key: jax.Array) -> tuple[Any, Feedback]:
        """Gradient of the mean over all agents, for the params of its own."""
        gradients, feedback = super().gradient(view, batch, summary, key)
        share = self.agents / self.world.agents
        return jax.tree.map(lambda g: g * share, gradients), feedback
