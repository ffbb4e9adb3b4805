"""Acting of PPO, A2C and IMPALA: the network, what it remembers, and what it records for learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tessera.algorithms.contract import Algorithm, Transition, View
from tessera.envs.base import Timestep
from tessera.errors import TesseraError, unknown_name
from tessera.maths.distributions import Distribution, for_actions, head_size
from tessera.maths.returns import running_returns
from tessera.maths.statistics import Moments, normalise
from tessera.networks import CORES, ActorCritic, OwnActorCritic, check_network, is_own
from tessera.stores.base import Experience
from tessera.support.fields import option


class Statistics(NamedTuple):
    """Running moments; () for what is not normalised."""

    observation: Moments | tuple[()] = ()
    returns: Moments | tuple[()] = ()


class ActorCriticMemory(NamedTuple):
    """What acting carries from step to step; () for what is not needed."""

    discounted: Any = ()
    """Discounted sum of the episode's rewards so far; rewards are scaled by its deviation."""
    carry: Any = ()
    """State of the network's core."""
    start: Any = ()
    """State of the core when the unroll began."""


class Extras(NamedTuple):
    """What acting records for learning; () for what is not needed."""

    log_prob: jax.Array
    discounted: Any = ()
    """Discounted sum of the episode's rewards so far; rewards are scaled by its deviation."""
    first: Any = ()
    """Whether an episode begins at this step's observation, for networks with a core."""
    start: Any = ()
    """State of the core when the unroll began: one for the whole unroll, [1, ...]."""
    alive: Any = ()
    """[agents] which of several agents acted, where some may drop out."""


@dataclass(frozen=True)
class ActorCriticActing(Algorithm):
    """Fields of the network, and acting with it."""

    unroll: int | None = option(None, low=1)
    """Steps that each environment plays between updates; default: the algorithm's own."""
    gamma: float = option(0.99, low=0, high=1, tunable=True)
    """Discount per step."""
    normalise_observations: bool | None = None
    """Shift and scale observations by running moments; default: for continuous actions and for networks with a core,
    without images."""
    normalise_rewards: bool | None = None
    """Scale rewards by the running deviation of discounted returns; default: for continuous actions, and for PPO with a
    core or several agents."""
    torso: Any = "auto"
    """Network that reads observations: auto, mlp, nature, small, resnet, or a Flax module of yours, by name
    py:module.Class?width=64."""
    widths: tuple[int, ...] | None = None
    """Widths of the fully connected layers; default 64 64 for mlp, 512 for nature, 128 for small, 256 for resnet."""
    activation: str | None = None
    """Activation: default tanh for mlp, relu for images."""
    core: Any = "none"
    """Recurrent core between the torso and the heads: none, lstm, gru, or one of Flax's recurrent cells, by name
    py:module.Class?features=64."""
    core_width: int | None = option(None, low=1)
    """Numbers that the core remembers; default 64 behind mlp, 256 behind images."""
    network: Any = None
    """Instead of torso, core and heads: a whole network of yours, as a Flax module, by name py:module.Class."""
    burn_in: int = option(0, low=0)
    """Steps at the beginning of each unroll that only bring the core's state up to date; nothing is learned there."""

    def check(self) -> None:
        """Refuse a burn-in without a core, or one that leaves nothing of the unroll to learn from."""
        super().check()
        if not is_own(self.core) and self.core not in CORES:
            raise unknown_name("core", self.core, CORES)
        if self.network is not None:
            if self.recurrent or self.world.agents or self.torso != "auto":
                raise TesseraError(
                    f"{self.name}: --network is a whole one, for one agent: leave out --torso and --core, or --network"
                )
            shapes = ((head_size(self.world.actions),), ())
            check_network(
                self.world, self.network, shapes, "the head output of a distribution over actions and a value"
            )
        if self.burn_in and (self.core == "none" or self.burn_in >= self.schedule.unroll):
            raise TesseraError(
                f"{self.name}: --burn-in {self.burn_in} needs --core lstm or gru, and a longer --unroll than "
                f"{self.schedule.unroll}"
            )

    @property
    def recurrent(self) -> bool:
        """Whether the network has a core."""
        return self.core != "none"

    @property
    def agents(self) -> int:
        """Agents that it acts for; 0: one, without an axis of agents."""
        return self.world.agents

    @property
    def model(self) -> Any:
        """The network, as a Flax module."""
        if self.network is not None:
            return OwnActorCritic(self.world, self.network)
        return ActorCritic(self.world, self.widths, self.torso, None, self.activation, self.core, self.core_width)

    def init(self, key: jax.Array) -> Any:
        """Make the network's params."""
        world = self.world
        return self.model.init(key, world.zeros(jnp, 1), self.model.empty(), jnp.zeros(1, bool))

    def memory(self, env_id: jax.Array) -> ActorCriticMemory:
        """An empty core, and no rewards so far."""
        del env_id
        carry, agents = self.model.empty(), self.agents
        discounted = jnp.zeros((agents,) if agents else (), jnp.result_type(float))
        return ActorCriticMemory(discounted if self.normalise_rewards else (), carry, carry)

    def act(self, view: View, memory: ActorCriticMemory, timestep: Timestep, key: jax.Array) -> tuple[Any, Any, Any]:
        """Sample an action, and record its log-probability."""
        distribution, memory = self.action_distribution(view, memory, timestep)
        action = self.sample_action(distribution, key)
        first = timestep.first if self.recurrent else ()
        alive = () if timestep.alive is None else timestep.alive
        return action, memory, Extras(distribution.log_prob(action), first=first, alive=alive)

    def greedy(self, view: View, memory: ActorCriticMemory, timestep: Timestep, key: jax.Array) -> tuple[Any, Any]:
        """Take the likeliest action; sample as in training where a player who can be foreseen loses by that."""
        distribution, memory = self.action_distribution(view, memory, timestep)
        return self.sample_action(distribution, key) if self.greedy_draws else distribution.mode(), memory

    @property
    def greedy_draws(self) -> bool:
        """In games of several players who do not see all: who never bluffs, or always does, is easily beaten."""
        return self.world.hidden and self.world.players > 1

    def action_distribution(
        self, view: View, memory: ActorCriticMemory, timestep: Timestep
    ) -> tuple[Distribution, ActorCriticMemory]:
        """The distribution over actions at a timestep, and the memory after it."""
        observation = normalised_observation(view.statistics, timestep.observation)
        first = timestep.first if self.recurrent else None
        head, carry = self.model.apply(view.params, observation, memory.carry, first, method="policy")
        return for_actions(self.world.actions, head, self.legal_actions(timestep)), memory._replace(carry=carry)

    def legal_actions(self, timestep: Timestep) -> Any:
        """Which actions are allowed for those that it acts for."""
        return timestep.legal

    def sample_action(self, distribution: Distribution, key: jax.Array) -> Any:
        """Sample an action, or one for each agent."""
        return distribution.sample(key)

    def digest(self, view: View, memory: ActorCriticMemory, trajectory: Transition) -> tuple[Experience, Any]:
        """Add the core's state before the unroll and, where rewards are scaled, running sums of rewards."""
        del view
        discounted, sums = memory.discounted, trajectory.extras.discounted
        if self.normalise_rewards:
            over = trajectory.terminated | trajectory.truncated
            discounted, sums = running_returns(trajectory.reward, over, discounted, self.gamma)
        start = jax.tree.map(lambda x: x[None], memory.start)
        extras = trajectory.extras._replace(discounted=sums, start=start)
        rows = trajectory._replace(extras=extras, version=None, next_legal=None)
        experience = Experience(rows, trajectory.valid, version=trajectory.version)
        return experience, ActorCriticMemory(discounted, memory.carry, memory.carry)


def normalised_observation(statistics: Statistics, observation: jax.Array) -> jax.Array:
    """Shift and scale observations by their running moments, if these are kept."""
    moments = statistics.observation
    return normalise(observation, moments) if isinstance(moments, Moments) else observation
