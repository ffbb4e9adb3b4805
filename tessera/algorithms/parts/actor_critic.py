"""Learning of PPO, A2C and IMPALA, up to the loss: advantages, normalisers, batches. Each algorithm has its own loss.

Acting with the same network is in actor_critic_acting.py.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp

from tessera.algorithms.contract import State, Transition, View
from tessera.algorithms.parts.actor_critic_acting import ActorCriticActing, Statistics, normalised_observation
from tessera.envs.base import Box, Spec
from tessera.errors import TesseraError
from tessera.maths.bootstrap import next_values
from tessera.maths.distributions import Distribution, for_actions
from tessera.maths.returns import generalised_advantage
from tessera.maths.statistics import Moments, merge, merge_all, moments_of, no_moments, normalise, variance
from tessera.stores.base import Sample
from tessera.support.fields import option


class UnrollEstimates(NamedTuple):
    """What the learner's params say about an unroll, [T, n] each."""

    distribution: Distribution
    values: jax.Array
    next_values: jax.Array
    """Values of the observations that the steps led to, before any autoreset."""
    rewards: jax.Array
    """Rewards, scaled if they are normalised."""


class Batch(NamedTuple):
    """Rows to learn from: single steps, or for networks with a core sequences [rows, T, ...]."""

    observation: jax.Array
    action: jax.Array
    log_prob: jax.Array
    """Log-probability of the action when it was played."""
    legal: jax.Array | None
    """Which actions were allowed; None if all always are."""
    advantage: jax.Array
    target: jax.Array
    """What the value should be."""
    valid: jax.Array | None
    """False for rows that must not be learned from; None if there are none."""
    first: Any = ()
    """[rows, T] whether an episode begins there; for networks with a core."""
    start: Any = ()
    """[rows, ...] state of the core before the first step."""


class Summary(NamedTuple):
    """What all groups share about their batches: each field has a leading axis of groups in `gradient`."""

    advantage: Moments
    statistics: Statistics
    valid: jax.Array
    """Share of valid rows."""


@dataclass(frozen=True)
class ActorCriticAlgorithm(ActorCriticActing):
    """Fields and functions common to PPO, A2C and IMPALA. With a core, a row is the whole unroll of an environment."""

    learning_rate: float | None = option(None, low=0, tunable=True)
    """Step size at the beginning; default: the algorithm's own."""
    anneal: bool = True
    """Let the learning rate fall to zero, in a straight line, by the end of the run."""
    gae_lambda: float = option(0.95, low=0, high=1, tunable=True)
    """How far advantages look ahead: 0 one step, 1 to the end (GAE)."""
    value_coefficient: float = option(0.5, low=0, tunable=True)
    """Weight of the value loss."""
    entropy_coefficient: float | None = option(None, low=0, tunable=True)
    """Weight of the entropy bonus; default 0.01, 0 for continuous actions, and 0.03 for A2C and IMPALA on boards."""
    max_gradient_norm: float = option(0.5, low=0)
    """Gradients are scaled down to this global norm; 0 leaves them alone."""
    normalise_advantages: bool = True
    """Shift and scale each batch's advantages to mean 0 and deviation 1."""

    def bind(self, spec: Spec) -> Self:
        """Fill in the defaults that depend on the kind of actions and observations."""
        continuous = isinstance(spec.actions, Box)
        defaults = {
            "entropy_coefficient": 0.0 if continuous else 0.01,
            "normalise_observations": (continuous or self.recurrent) and spec.is_vector,
            "normalise_rewards": continuous,
            **self.defaults_for(spec),
        }
        unset = {name: value for name, value in defaults.items() if getattr(self, name) is None}
        return dataclasses.replace(self, spec=spec, **unset)

    def check(self) -> None:
        """Refuse to normalise observations of several parts, and unrolls in which no game is sure to end."""
        super().check()
        if self.normalise_observations and self.world.is_tree:
            raise TesseraError(
                f"--normalise-observations is for observations of one array, and these have "
                f"{', '.join(self.world.parts)}: leave it out"
            )
        if "gae_lambda" in self.tuned and self.world.hidden and self.world.players > 1:
            raise TesseraError("gae_lambda decides which moves of a game with hidden cards can be learned from")
        if self.open_end >= self.schedule.unroll:
            raise TesseraError(
                f"--unroll {self.schedule.unroll} is shorter than a game of up to {self.open_end + 1} moves, and where "
                "players do not see all, a move is learned from by its game's end: make it longer"
            )

    def defaults_for(self, spec: Spec) -> dict[str, Any]:
        """The algorithm's own defaults that depend on the spec, by field."""
        del spec
        return {}

    def start(self, params: Any) -> State:
        """Begin with empty statistics."""
        real = jnp.result_type(float)
        observation: Any = ()
        if self.normalise_observations:
            observation = no_moments(self.world.array.shape[1 if self.world.agents else 0 :], real)
        returns = no_moments((), real) if self.normalise_rewards else ()
        return super().start(params)._replace(statistics=Statistics(observation, returns))

    def prepare(self, view: View, sample: Sample) -> tuple[Batch, Summary]:
        """Compute advantages of one group's unroll [T, n], and turn it into rows."""
        rows = self.mark_valid(sample.rows)
        start = jax.tree.map(lambda x: x[0], rows.extras.start)  # one for the whole unroll
        advantage, target = self.advantages_and_targets(self.estimates(view, rows, start), rows)
        extras = rows.extras
        played = (rows.observation, rows.action, extras.log_prob, rows.legal)
        batch = Batch(*played, advantage, target, rows.valid, extras.first)
        if self.recurrent:  # an environment's unroll is one row, a sequence
            batch = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), batch)._replace(start=start)
        else:
            batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
        return batch, self.summarise(rows, advantage)

    def mark_valid(self, rows: Transition) -> Transition:
        """Mark the steps of an unroll [T, n] that are learned from: none of the burn-in, nor of the `open_end`."""
        if not self.burn_in and not self.open_end:
            return rows
        steps = rows.truncated.shape[0]
        learned = (jnp.arange(steps) >= self.burn_in) & (jnp.arange(steps) < steps - self.open_end)
        valid = jnp.ones_like(rows.truncated) if rows.valid is None else rows.valid
        return rows._replace(valid=valid & learned[:, None])

    @property
    def open_end(self) -> int:
        """Steps at the end of an unroll whose games may go on after it, where players do not see all.

        If the other player moves next, the value there knows cards that who moved does not, and not those that who
        moved knows. So it is no estimate of what that player will win, who has to see the end of the game.
        """
        hidden = self.world.hidden and self.world.players > 1 and self.gae_lambda == 1
        return (self.world.time_limit or 1) - 1 if hidden else 0

    def estimates(self, view: View, rows: Transition, start: Any) -> UnrollEstimates:
        """Evaluate the network on an unroll [T, n], from the core's state before it."""
        observation = normalised_observation(view.statistics, rows.observation)
        head, values, carries = self.model.apply(view.params, observation, start, rows.extras.first)

        def value(at: tuple[jax.Array, Any]) -> jax.Array:
            observation, carry = at
            observation = normalised_observation(view.statistics, observation)
            return self.model.apply(view.params, observation, carry, method="value")

        after = next_values(value, values, (rows.next_observation, carries), rows.truncated)
        rewards = rows.reward
        if isinstance(view.statistics.returns, Moments):
            rewards = rewards / jnp.sqrt(variance(view.statistics.returns) + 1e-8)
        return UnrollEstimates(for_actions(self.world.actions, head, rows.legal), values, after, rewards)

    def discount(self, rows: Transition) -> Any:
        """What a value counts after a step; less than nothing where the other player moves next."""
        return self.gamma if rows.turn is None else self.gamma * rows.turn

    def advantages_and_targets(self, estimates: UnrollEstimates, rows: Transition) -> tuple[jax.Array, jax.Array]:
        """Advantages by GAE and targets of the value function, [T, n] each."""
        rewards, values, after = estimates.rewards, estimates.values, estimates.next_values
        ends = (rows.terminated, rows.truncated)
        advantage = generalised_advantage(rewards, values, after, *ends, self.discount(rows), self.gae_lambda)
        return advantage, advantage + values

    def summarise(self, rows: Transition, advantage: jax.Array) -> Summary:
        """Moments of one group's batch, over all of its agents."""
        real, axes = jnp.result_type(float), advantage.ndim
        observation = moments_of(rows.observation.astype(real), axes, rows.valid) if self.normalise_observations else ()
        returns = moments_of(rows.extras.discounted, axes, rows.valid) if self.normalise_rewards else ()
        valid = jnp.ones(()) if rows.valid is None else rows.valid.mean(dtype=real)
        return Summary(moments_of(advantage, axes, rows.valid), Statistics(observation, returns), valid)

    def advantages(self, batch: Batch, summary: Summary) -> jax.Array:
        """Advantages of the rows, normalised over the batch of all groups unless that is switched off."""
        if not self.normalise_advantages:
            return batch.advantage
        return normalise(batch.advantage, merge_all(summary.advantage), clip=None)

    def evaluate(self, params: Any, statistics: Statistics, batch: Batch) -> tuple[Distribution, jax.Array]:
        """The distribution over actions and the value at each row: what a loss is made of."""
        observation, first = normalised_observation(statistics, batch.observation), batch.first
        if self.recurrent:
            observation, first = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (observation, first))
        head, value, _ = self.model.apply(params, observation, batch.start, first, self.burn_in)
        if self.recurrent:
            head, value = jnp.swapaxes(head, 0, 1), jnp.swapaxes(value, 0, 1)
        return for_actions(self.world.actions, head, batch.legal), value

    @property
    def absorbs(self) -> bool:
        """Statistics change only if something is normalised."""
        return bool(self.normalise_observations or self.normalise_rewards)

    def absorb(self, state: State, summary: Summary) -> State:
        """Merge the batch's moments into the running ones, after the batch has been learned from."""
        statistics = Statistics(
            *(
                merge(old, merge_all(new)) if isinstance(old, Moments) and isinstance(new, Moments) else ()
                for old, new in zip(state.statistics, summary.statistics, strict=True)
            )
        )
        return state._replace(statistics=statistics)


def mean_over_valid(x: jax.Array, batch: Batch, summary: Summary) -> jax.Array:
    """Mean of a minibatch's valid rows.

    It divides by the share of valid rows in the whole batch, not in the minibatch, so that means over parts of the rows
    average to the mean over all of them.
    """
    if batch.valid is None:
        return x.mean()
    return jnp.where(batch.valid, x, 0).mean() / summary.valid.mean()
