"""The learning half of the actor-critic algorithms: advantages and the normalisers. Losses are theirs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp

from tessera.algorithms.contract import State, Transition, View
from tessera.algorithms.parts.acting import ActingAlgorithm
from tessera.algorithms.parts.actor_critic_types import Batch, Statistics, Summary, UnrollEstimates
from tessera.envs.base import Box, Spec
from tessera.maths.bootstrap import next_values
from tessera.maths.distributions import for_actions
from tessera.maths.returns import generalised_advantage
from tessera.maths.statistics import Moments, merge, merge_all, moments_of, no_moments, normalise, variance
from tessera.stores.base import Sample
from tessera.support.fields import option, resolved


@dataclass(frozen=True)
class ActorCriticAlgorithm(ActingAlgorithm):
    """Fields and functions common to PPO, A2C and IMPALA."""

    learning_rate: float | None = option(None, low=0)
    """Step size at the beginning; default: the algorithm's own."""
    anneal: bool = True
    """Let the learning rate fall to zero, in a straight line, by the end of the run."""
    gae_lambda: float = option(0.95, low=0, high=1)
    """How far advantages look ahead: 0 one step, 1 to the end (GAE)."""
    value_coefficient: float = option(0.5, low=0)
    """Weight of the value loss."""
    entropy_coefficient: float | None = option(None, low=0)
    """Weight of the entropy bonus; default 0.01, and 0 for continuous actions."""
    max_gradient_norm: float = option(0.5, low=0)
    """Gradients are scaled down to this global norm; 0 leaves them alone."""
    normalise_advantages: bool = True
    """Shift and scale each batch's advantages to mean 0 and deviation 1."""

    def bind(self, spec: Spec) -> Self:
        """Choose what was left to choose by the kind of actions and observations."""
        continuous = isinstance(spec.actions, Box)
        chosen = {
            "entropy_coefficient": 0.0 if continuous else 0.01,
            "normalise_observations": (continuous or self.recurrent) and len(spec.observation_shape) == 1,
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
    def absorbs(self) -> bool:
        """Statistics change only if something is normalised."""
        return bool(self.normalise_observations or self.normalise_rewards)

    def start(self, params: Any) -> State:
        """Begin with empty statistics."""
        real = jnp.result_type(float)
        shape = self.world.observation_shape[1 if self.world.agents else 0 :]
        observation = no_moments(shape, real) if self.normalise_observations else ()
        returns = no_moments((), real) if self.normalise_rewards else ()
        return super().start(params)._replace(statistics=Statistics(observation, returns))

    def prepare(self, view: View, sample: Sample) -> tuple[Batch, Summary]:
        """Advantages of one group's unroll [T, n], as rows."""
        rows = self.usable(sample.rows)
        start = jax.tree.map(lambda x: x[0], rows.extras.start)  # one for the whole unroll
        advantage, target = self.estimate(self.played(view, rows, start), rows)
        extras = rows.extras
        batch = Batch(rows.observation, rows.action, extras.log_prob, advantage, target, rows.valid, extras.first)
        if self.recurrent:  # an environment's unroll is one row, a sequence
            batch = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), batch)._replace(start=start)
        else:
            batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
        return batch, self.summarise(rows, advantage)

    def usable(self, rows: Transition) -> Transition:
        """An unroll [T, n] with marks on what is to be learned from: nothing of the burn-in."""
        if not self.burn_in:
            return rows
        later = (jnp.arange(rows.truncated.shape[0]) >= self.burn_in)[:, None]
        valid = jnp.ones_like(rows.truncated) if rows.valid is None else rows.valid
        return rows._replace(valid=valid & later)

    def played(self, view: View, rows: Transition, start: Any) -> UnrollEstimates:
        """What the params of `view` make of an unroll [T, n], given what was remembered before it."""
        seen = self.seen(view.statistics, rows.observation)
        head, values, carries = self.network.apply(view.params, seen, start, rows.extras.first)

        def value(at: tuple[jax.Array, Any]) -> jax.Array:
            return self.network.apply(view.params, self.seen(view.statistics, at[0]), at[1], method="value")

        after = next_values(value, values, (rows.next_observation, carries), rows.truncated)
        rewards = rows.reward
        if isinstance(view.statistics.returns, Moments):
            rewards = rewards / jnp.sqrt(variance(view.statistics.returns) + 1e-8)
        return UnrollEstimates(for_actions(self.world.actions, head), values, after, rewards)

    def estimate(self, played: UnrollEstimates, rows: Transition) -> tuple[jax.Array, jax.Array]:
        """Advantages and targets of the value function, [T, n] each."""
        ends = (rows.terminated, rows.truncated, self.gamma, self.gae_lambda)
        advantage = generalised_advantage(played.rewards, played.values, played.next_values, *ends)
        return advantage, advantage + played.values

    def summarise(self, rows: Transition, advantage: jax.Array) -> Summary:
        """Moments of one group's batch, over all of its agents."""
        real, axes = jnp.result_type(float), advantage.ndim
        observation = moments_of(rows.observation.astype(real), axes, rows.valid) if self.normalise_observations else ()
        returns = moments_of(rows.extras.discounted, axes, rows.valid) if self.normalise_rewards else ()
        fraction = jnp.ones(()) if rows.valid is None else rows.valid.mean()
        return Summary(moments_of(advantage, axes, rows.valid), Statistics(observation, returns), fraction)

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
        return resolved(self.entropy_coefficient) * entropy

    def absorb(self, state: State, summary: Summary) -> State:
        """Fold the batch's moments into the running ones, now that the batch has been learned from."""
        statistics = Statistics(
            *(
                merge(old, merge_all(new)) if isinstance(old, Moments) and isinstance(new, Moments) else ()
                for old, new in zip(state.statistics, summary.statistics, strict=True)
            )
        )
        return state._replace(statistics=statistics)
