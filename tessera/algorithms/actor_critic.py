"""What the actor-critic algorithms share: acting, advantages, and the normalisers. Losses are theirs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp

from tessera.algorithms.base import Algorithm, Clock, State, Transition, View, settled
from tessera.algorithms.rows import Batch, Extras, Statistics, Summary
from tessera.envs.base import Box, Spec, Timestep
from tessera.maths.bootstrap import next_values
from tessera.maths.distributions import Distribution, for_actions
from tessera.maths.returns import generalised_advantage
from tessera.maths.statistics import Moments, merge, merge_all, moments_of, no_moments, normalise, variance
from tessera.networks import ActorCritic
from tessera.stores.base import Experience, Sample


@dataclass(frozen=True)
class ActorCriticAlgorithm(Algorithm):
    """Fields and functions common to PPO and A2C."""

    unroll: int | None = None
    """Steps that each environment plays between updates; default: the algorithm's own."""
    learning_rate: float | None = None
    """Step size at the beginning; default: the algorithm's own."""
    anneal: bool = True
    """Let the learning rate fall to zero, in a straight line, by the end of the run."""
    gamma: float = 0.99
    """Discount per step."""
    gae_lambda: float = 0.95
    """How far advantages look ahead: 0 one step, 1 to the end (GAE)."""
    value_coefficient: float = 0.5
    """Weight of the value loss."""
    entropy_coefficient: float | None = None
    """Weight of the entropy bonus; default 0.01, and 0 for continuous actions."""
    max_gradient_norm: float = 0.5
    """Gradients are scaled down to this global norm; 0 leaves them alone."""
    normalise_advantages: bool = True
    """Shift and scale each batch's advantages to mean 0 and deviation 1."""
    normalise_observations: bool | None = None
    """Shift and scale observations by running moments; default: for continuous actions without images."""
    normalise_rewards: bool | None = None
    """Scale rewards by the running deviation of discounted returns; default: for continuous actions."""
    torso: str = "auto"
    """Network that reads observations: auto, mlp, nature or small."""
    widths: tuple[int, ...] | None = None
    """Widths of the fully connected layers; default 64 64 for mlp, 512 for nature, 128 for small."""
    activation: str | None = None
    """Activation: default tanh for mlp, relu for images."""

    def bind(self, spec: Spec) -> Self:
        """Choose what was left to choose by the kind of actions and observations."""
        continuous = isinstance(spec.actions, Box)
        chosen = {
            "entropy_coefficient": 0.0 if continuous else 0.01,
            "normalise_observations": continuous and len(spec.observation_shape) == 1,
            "normalise_rewards": continuous,
            **self.chosen(spec),
        }
        left = {k: v for k, v in chosen.items() if getattr(self, k) is None}
        return dataclasses.replace(self, spec=spec, **left)

    def chosen(self, spec: Spec) -> dict[str, Any]:
        """Further defaults that depend on the spec, by field."""
        del spec
        return {}

    @property
    def network(self) -> Any:
        """The network, as a Flax module."""
        return ActorCritic(self.world, self.widths, self.torso, activation=self.activation)

    @property
    def absorbs(self) -> bool:
        """Statistics change only if something is normalised."""
        return bool(self.normalise_observations or self.normalise_rewards)

    def rate(self, clock: Clock) -> Any:
        """Learning rate now."""
        rate = settled(self.learning_rate)
        return rate * (1.0 - clock.progress) if self.anneal else rate

    def init(self, key: jax.Array) -> Any:
        """Make the network's params."""
        world = self.world
        return self.network.init(key, jnp.zeros(world.observation_shape, world.observation_dtype))

    def start(self, params: Any) -> State:
        """Begin with empty statistics."""
        real = jnp.result_type(float)
        observation = no_moments(self.world.observation_shape, real) if self.normalise_observations else ()
        returns = no_moments((), real) if self.normalise_rewards else ()
        return super().start(params)._replace(statistics=Statistics(observation, returns))

    def memory(self, env_id: jax.Array) -> Any:
        """The discounted sum of rewards so far, where rewards are normalised."""
        del env_id
        return jnp.zeros((), jnp.result_type(float)) if self.normalise_rewards else ()

    def seen(self, statistics: Statistics, observation: jax.Array) -> jax.Array:
        """The observation as the network gets it."""
        moments = statistics.observation
        return normalise(observation, moments) if isinstance(moments, Moments) else observation

    def distribution(self, view: View, observation: jax.Array) -> Distribution:
        """What to do at `observation`."""
        head = self.network.apply(view.params, self.seen(view.statistics, observation), method="policy")
        return for_actions(self.world.actions, head)

    def values(self, view: View, observation: jax.Array) -> jax.Array:
        """How good `observation` is."""
        return self.network.apply(view.params, self.seen(view.statistics, observation), method="value")

    def act(self, view: View, memory: Any, timestep: Timestep, key: jax.Array) -> tuple[Any, Any, Any]:
        """Draw an action, and remember how likely it was."""
        distribution = self.distribution(view, timestep.observation)
        action = distribution.sample(key)
        return action, memory, Extras(distribution.log_prob(action))

    def greedy(self, view: View, memory: Any, timestep: Timestep, key: jax.Array) -> tuple[Any, Any]:
        """Take the likeliest action."""
        del key
        return self.distribution(view, timestep.observation).mode(), memory

    def digest(self, view: View, memory: Any, trajectory: Transition) -> tuple[Experience, Any]:
        """Hand the trajectory on; where rewards are normalised, with running discounted sums of them."""
        if not self.normalise_rewards:
            return super().digest(view, memory, trajectory)
        over = trajectory.terminated | trajectory.truncated

        def step(total: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            total = self.gamma * total + row[0].astype(total.dtype)
            return jnp.where(row[1], 0, total), total

        memory, discounted = jax.lax.scan(step, memory, (trajectory.reward, over))
        rows = trajectory._replace(extras=trajectory.extras._replace(discounted=discounted), version=None)
        return Experience(rows, trajectory.valid, version=trajectory.version), memory

    def prepare(self, view: View, sample: Sample) -> tuple[Batch, Summary]:
        """Advantages of one group's unroll [T, n], as rows."""
        rows: Transition = sample.rows
        values = self.values(view, rows.observation)
        after = next_values(lambda o: self.values(view, o), values, rows.next_observation, rows.truncated)
        rewards = rows.reward
        if isinstance(view.statistics.returns, Moments):
            rewards = rewards / jnp.sqrt(variance(view.statistics.returns) + 1e-8)
        ends = (rows.terminated, rows.truncated)
        advantage = generalised_advantage(rewards, values, after, *ends, self.gamma, self.gae_lambda)
        batch = Batch(rows.observation, rows.action, rows.extras.log_prob, advantage, advantage + values, rows.valid)
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch), self.summarise(rows, advantage)

    def summarise(self, rows: Transition, advantage: jax.Array) -> Summary:
        """Moments of one group's batch."""
        real = jnp.result_type(float)
        observation = moments_of(rows.observation.astype(real), 2, rows.valid) if self.normalise_observations else ()
        returns = moments_of(rows.extras.discounted, 2, rows.valid) if self.normalise_rewards else ()
        fraction = jnp.ones(()) if rows.valid is None else rows.valid.mean()
        return Summary(moments_of(advantage, 2, rows.valid), Statistics(observation, returns), fraction)

    def advantages(self, batch: Batch, summary: Summary) -> jax.Array:
        """Advantages of rows, normalised over the whole batch of all groups."""
        if not self.normalise_advantages:
            return batch.advantage
        return normalise(batch.advantage, merge_all(summary.advantage), clip=None)

    def mean(self, x: jax.Array, batch: Batch, summary: Summary) -> jax.Array:
        """Mean over valid rows; by the share of valid rows in the whole batch, so that it splits exactly."""
        if batch.valid is None:
            return x.mean()
        return jnp.where(batch.valid, x, 0).mean() / summary.valid.mean()

    def entropy_bonus(self, entropy: jax.Array) -> jax.Array:
        """What the loss is lowered by for staying undecided."""
        return settled(self.entropy_coefficient) * entropy

    def absorb(self, state: State, summary: Summary) -> State:
        """Fold the batch's moments into the running ones, now that the batch has been learned from."""
        statistics = Statistics(
            *(
                merge(old, merge_all(new)) if isinstance(old, Moments) and isinstance(new, Moments) else ()
                for old, new in zip(state.statistics, summary.statistics, strict=True)
            )
        )
        return state._replace(statistics=statistics)
