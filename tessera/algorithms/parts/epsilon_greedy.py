"""Acting by action values: the Q-network, epsilon-greedy actions, and each environment's exploration rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from tessera.algorithms.contract import Algorithm, View
from tessera.algorithms.parts.n_step_windows import ValueMemory
from tessera.envs.base import Discrete, Spec, Timestep
from tessera.errors import TesseraError, unknown_name
from tessera.maths.exploration import apex_epsilon, best_action, epsilon_greedy, linear, mixed_epsilon
from tessera.networks import QNetwork, as_module, check_network
from tessera.support.fields import option

EXPLORATIONS = ("anneal", "ladder", "mixture")


@dataclass(frozen=True)
class EpsilonGreedyAlgorithm(Algorithm):
    """Fields and functions common to DQN and Q-learning: the network, exploration, and acting with them."""

    default_envs: ClassVar[int] = 16

    torso: Any = "auto"
    """Network that reads observations: auto, mlp, nature, small, resnet, or a Flax module of yours, by name
    py:module.Class?width=64."""
    widths: tuple[int, ...] | None = (64, 64)
    """Widths of the fully connected layers."""
    network: Any = None
    """Instead of torso and heads: a whole network of yours, as a Flax module, by name py:module.Class."""
    dueling: bool = False
    """Network with separate heads for the value and the advantages (Wang et al., 2016)."""
    exploration: str = "anneal"
    """anneal: the same rate everywhere, which falls. ladder: a fixed rate that falls from one environment to the next
    (Ape-X). mixture: a rate that falls to 0.1, 0.01 or 0.5 (asynchronous Q-learning)."""
    epsilon_start: float = option(1.0, low=0, high=1, tunable=True)
    """Share of random actions at the beginning."""
    epsilon_end: float = option(0.05, low=0, high=1, tunable=True)
    """Share of random actions once exploration has fallen, the same everywhere."""
    epsilon_fraction: float = option(0.2, low=0, high=1, tunable=True)
    """Part of the run during which exploration falls."""
    ladder_base: float = option(0.4, low=0, high=1)
    """Share of random actions in the first environment of a ladder."""
    ladder_exponent: float = option(7.0, low=0)
    """How steep a ladder is: the last environment's share is the first's to the power of one more than this."""

    def check(self) -> None:
        """Refuse an unknown kind of exploration."""
        super().check()
        if self.exploration not in EXPLORATIONS:
            raise unknown_name("exploration", self.exploration, EXPLORATIONS)
        if self.network is not None:
            if self.dueling or getattr(self, "noisy", False) or self.torso != "auto":
                raise TesseraError(f"{self.name}: --network is a whole one: leave out --torso, --dueling and --noisy")
            shape = (self.world.alternatives, *((self.outputs_per_action,) if self.outputs_per_action else ()))
            check_network(self.world, self.network, (shape,), "values of actions")

    def bind(self, spec: Spec) -> Self:
        """Refuse actions that are not one discrete choice."""
        if not isinstance(spec.actions, Discrete):
            raise TesseraError(
                f"{self.name} needs one discrete action, this environment has {spec.actions}: try dpg, ppo or a2c"
            )
        return super().bind(spec)

    @property
    def model(self) -> Any:
        """The network, as a Flax module."""
        return self.own_or(QNetwork(self.world, self.widths, self.torso, self.dueling))

    def own_or(self, ours: Any) -> Any:
        """The user's own network, if there is one, or ours."""
        return ours if self.network is None else as_module(self.network, "network")

    @property
    def outputs_per_action(self) -> int | None:
        """Numbers that the network computes for each action; None: its value."""
        return None

    def init(self, key: jax.Array) -> Any:
        """Make the network's params."""
        return self.model.init(key, self.world.zeros(jnp))

    def act(self, view: View, memory: ValueMemory, timestep: Timestep, key: jax.Array) -> tuple[Any, Any, Any]:
        """Take the best action, or with probability epsilon a random one."""
        values = self.action_values(view.params, timestep.observation, key)
        epsilon = self.epsilon(view, memory.exploration)
        return epsilon_greedy(key, values, epsilon, timestep.legal), memory, ()

    def greedy(self, view: View, memory: ValueMemory, timestep: Timestep, key: jax.Array) -> tuple[Any, Any]:
        """Take the best action."""
        del key
        return best_action(self.action_values(view.params, timestep.observation), timestep.legal), memory

    def action_values(self, params: Any, observation: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """The value of each action, [..., n]; with a key, noise may be on them."""
        del key
        return self.model.apply(params, observation)

    def exploration_rate(self, env_id: jax.Array) -> Any:
        """The rate of environment number `env_id`, for its memory; () if all have the same."""
        match self.exploration:
            case "ladder":
                return apex_epsilon(env_id, self.envs, self.ladder_base, self.ladder_exponent)
            case "mixture":
                return mixed_epsilon(env_id)
        return ()

    def epsilon(self, view: View, exploration_rate: Any) -> jax.Array:
        """Share of random actions now."""
        if self.exploration == "ladder":
            return exploration_rate
        end = exploration_rate if self.exploration == "mixture" else self.epsilon_end
        return linear(view.clock.progress, self.epsilon_start, end, self.epsilon_fraction)
