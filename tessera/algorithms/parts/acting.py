"""The acting half of the actor-critic algorithms: the network, what it remembers, and what it leaves for learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from tessera.algorithms.contract import Algorithm, Transition, View
from tessera.algorithms.parts.actor_critic_types import ActorCriticMemory, Batch, Extras, Statistics
from tessera.envs.base import Timestep
from tessera.errors import TesseraError, unknown_name
from tessera.maths.distributions import Distribution, for_actions
from tessera.maths.statistics import Moments, normalise
from tessera.networks import CORES, ActorCritic
from tessera.stores.base import Experience
from tessera.support.fields import option


@dataclass(frozen=True)
class ActingAlgorithm(Algorithm):
    """Fields of the network, and acting with it. With a core, rows to learn from are sequences, one per unroll."""

    unroll: int | None = option(None, low=1)
    """Steps that each environment plays between updates; default: the algorithm's own."""
    gamma: float = option(0.99, low=0, high=1)
    """Discount per step."""
    normalise_observations: bool | None = None
    """Shift and scale observations by running moments; default: for continuous actions and for networks with a core,
    without images."""
    normalise_rewards: bool | None = None
    """Scale rewards by the running deviation of discounted returns; default: for continuous actions, and for PPO with a
    core or several agents."""
    torso: str = "auto"
    """Network that reads observations: auto, mlp, nature, small or resnet."""
    widths: tuple[int, ...] | None = None
    """Widths of the fully connected layers; default 64 64 for mlp, 512 for nature, 128 for small, 256 for resnet."""
    activation: str | None = None
    """Activation: default tanh for mlp, relu for images."""
    core: str = "none"
    """ActorCriticMemory between the torso and the heads: none, lstm or gru."""
    core_width: int | None = option(None, low=1)
    """Numbers that the core remembers; default 64 behind mlp, 256 behind images."""
    burn_in: int = option(0, low=0)
    """Steps at the beginning of each unroll that only bring the core's memory up to date; nothing is learned there."""

    def check(self) -> None:
        """Refuse a burn-in that leaves nothing to learn from, or that has nothing to bring up to date."""
        super().check()
        if self.core not in CORES:
            raise unknown_name("core", self.core, CORES)
        if self.burn_in and (self.core == "none" or self.burn_in >= self.schedule.unroll):
            raise TesseraError(
                f"{self.name}: --burn-in {self.burn_in} needs --core lstm or gru, and a longer --unroll than "
                f"{self.schedule.unroll}"
            )

    @property
    def recurrent(self) -> bool:
        """Whether the network remembers."""
        return self.core != "none"

    @property
    def agents(self) -> int:
        """Agents that it acts for; 0: one, without an axis of its own."""
        return self.world.agents

    @property
    def network(self) -> Any:
        """The network, as a Flax module."""
        return ActorCritic(self.world, self.widths, self.torso, None, self.activation, self.core, self.core_width)

    def init(self, key: jax.Array) -> Any:
        """Make the network's params."""
        world = self.world
        observation = jnp.zeros((1, *world.observation_shape), world.observation_dtype)
        return self.network.init(key, observation, self.network.empty(), jnp.zeros(1, bool))

    def memory(self, env_id: jax.Array) -> ActorCriticMemory:
        """Nothing earned and nothing remembered."""
        del env_id
        carry, agents = self.network.empty(), self.agents
        earned = jnp.zeros((agents,) if agents else (), jnp.result_type(float))
        return ActorCriticMemory(earned if self.normalise_rewards else (), carry, carry)

    def seen(self, statistics: Statistics, observation: jax.Array) -> jax.Array:
        """The observation as the network gets it."""
        moments = statistics.observation
        return normalise(observation, moments) if isinstance(moments, Moments) else observation

    def choose(
        self, view: View, memory: ActorCriticMemory, timestep: Timestep
    ) -> tuple[Distribution, ActorCriticMemory]:
        """What to do at a timestep, and what is remembered after it."""
        observation = self.seen(view.statistics, timestep.observation)
        first = timestep.first if self.recurrent else None
        head, carry = self.network.apply(view.params, observation, memory.carry, first, method="policy")
        return for_actions(self.world.actions, head), memory._replace(carry=carry)

    def act(self, view: View, memory: ActorCriticMemory, timestep: Timestep, key: jax.Array) -> tuple[Any, Any, Any]:
        """Draw an action, and remember how likely it was."""
        distribution, memory = self.choose(view, memory, timestep)
        action = self.draw(distribution, key)
        first = timestep.first if self.recurrent else ()
        alive = () if timestep.alive is None else timestep.alive
        return action, memory, Extras(distribution.log_prob(action), first=first, alive=alive)

    def draw(self, distribution: Distribution, key: jax.Array) -> Any:
        """An action, or one for each agent."""
        return distribution.sample(key)

    def greedy(self, view: View, memory: ActorCriticMemory, timestep: Timestep, key: jax.Array) -> tuple[Any, Any]:
        """Take the likeliest action."""
        del key
        distribution, memory = self.choose(view, memory, timestep)
        return distribution.mode(), memory

    def digest(self, view: View, memory: ActorCriticMemory, trajectory: Transition) -> tuple[Experience, Any]:
        """Hand the trajectory on, with what was remembered before it and with running discounted sums of rewards."""
        del view
        discounted, sums = memory.discounted, trajectory.extras.discounted
        if self.normalise_rewards:
            over = trajectory.terminated | trajectory.truncated

            def step(total: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
                total = self.gamma * total + row[0].astype(total.dtype)
                return jnp.where(row[1], 0, total), total

            discounted, sums = jax.lax.scan(step, discounted, (trajectory.reward, over))
        start = jax.tree.map(lambda x: x[None], memory.start)
        rows = trajectory._replace(extras=trajectory.extras._replace(discounted=sums, start=start), version=None)
        experience = Experience(rows, trajectory.valid, version=trajectory.version)
        return experience, ActorCriticMemory(discounted, memory.carry, memory.carry)

    def evaluate(self, params: Any, statistics: Statistics, batch: Batch) -> tuple[Distribution, jax.Array]:
        """What to do in each row, and how good it is there: what a loss is made of."""
        observation, first = self.seen(statistics, batch.observation), batch.first
        if self.recurrent:
            observation, first = jnp.swapaxes(observation, 0, 1), jnp.swapaxes(first, 0, 1)
        head, value, _ = self.network.apply(params, observation, batch.start, first, self.burn_in)
        if self.recurrent:
            head, value = jnp.swapaxes(head, 0, 1), jnp.swapaxes(value, 0, 1)
        return for_actions(self.world.actions, head), value
