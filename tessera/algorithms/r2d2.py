"""R2D2: recurrent Q-learning from a replay of sequences (Kapturowski et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from tessera.algorithms.contract import View
from tessera.algorithms.parts.sequence_replay import SequenceReplayAlgorithm
from tessera.algorithms.parts.sequences import Sequence, time_major
from tessera.envs.base import Spec
from tessera.maths.bootstrap import next_values
from tessera.maths.exploration import best_action
from tessera.maths.losses import select
from tessera.maths.rescaling import signed_hyperbolic, signed_parabolic
from tessera.maths.returns import n_step_within
from tessera.networks import Carry
from tessera.support.fields import option


@dataclass(frozen=True)
class R2D2(SequenceReplayAlgorithm):
    """Double Q-learning with a recurrent network, on sequences that start from what the actor remembered there.

    One update, step by step:

    1. `act` takes epsilon-greedy actions, and records the core's state before each step: parts/sequence_replay.py.
    2. `digest` makes one sequence of each unroll and the steps before it, so that sequences overlap, and `prepare`
       importance weights of a draw: parts/sequence_replay.py and replay_learning.py.
    3. `loss_gradient` runs both networks through a sequence. The burn-in only brings their states up to date; behind it
       errors are those of n-step double Q-learning, of rescaled values.
    4. A sequence's priority mixes its largest and its mean error: `row_errors`.
    5. `apply` takes the step and updates the target network: parts/replay_learning.py.
    """

    name: ClassVar[str] = "r2d2"
    summary: ClassVar[str] = "recurrent Q-learning: replay of sequences with stored states, burn-in, prioritised"

    gamma: float = option(0.997, low=0, high=1, tunable=True)
    """Discount per step; the paper's."""
    rescale: bool = True
    """Learn values on the scale of their square root (Pohlen et al., 2018)."""
    exploration: str = "ladder"
    """anneal: the same rate everywhere, which falls. ladder: a fixed rate that falls from one environment to the next
    (Ape-X). mixture: a rate that falls to 0.1, 0.01 or 0.5 (asynchronous Q-learning)."""
    prioritised: bool = True
    """Draw sequences in proportion to their last errors (Schaul et al., 2016)."""
    priority_mixture: float = option(0.9, low=0, high=1)
    """Weight of a sequence's largest error in its priority; the rest is its mean error's."""

    def defaults_for(self, spec: Spec) -> dict[str, Any]:
        """Windows of 5 steps, as in the paper, and steps of half the usual size."""
        return {**super().defaults_for(spec), "n_step": 5, "learning_rate": 5e-4}

    def sequence_errors(self, params: Any, target: Any, rows: Sequence) -> tuple[jax.Array, jax.Array]:
        """Errors (value minus target) and values of the actions taken after the burn-in, [T, B] each, of rows [T, B].

        Gradients flow through the values only.
        """
        q_tm1, carries = self.model.apply(params, rows.observation, rows.start, rows.first, self.burn_in)
        online = jax.lax.stop_gradient((params, q_tm1, carries))
        value = select(q_tm1, rows.action)
        error = value - jax.lax.stop_gradient(self.targets(target, online, rows))
        return error[self.burn_in :], value[self.burn_in :]

    def targets(self, target: Any, online: tuple[Any, jax.Array, Carry], rows: Sequence) -> jax.Array:
        """What the values of the actions taken should be, [T, B]; `online` are params, and values and carries by them.

        Windows end with an episode or the sequence, and bootstrap from the observation that their last step led to.
        """
        q_tm1, carries = self.model.apply(target, rows.observation, rows.start, rows.first)
        best = best_action(self.next_action_values(*online, rows), rows.next_legal)
        v_t = select(self.next_action_values(target, q_tm1, carries, rows), best)
        v_t = signed_parabolic(v_t) if self.rescale else v_t
        window = n_step_within(rows.reward, rows.terminated, rows.truncated, self.gamma, self.window)
        total = window.reward + window.discount * jnp.take_along_axis(v_t, window.last, axis=0)
        return signed_hyperbolic(total) if self.rescale else total

    def next_action_values(self, params: Any, q_tm1: jax.Array, carries: Carry, rows: Sequence) -> jax.Array:
        """Action values of the observations that steps led to, [T, B, n], given the core's state after each step."""

        def values(at: tuple[Any, Carry]) -> jax.Array:
            observation, carry = at
            within = jnp.zeros(rows.reward.shape[1:], bool)
            return self.model.apply(params, observation, carry, within, method="step")[0]

        return next_values(values, q_tm1, (rows.next_observation, carries), rows.truncated)

    def mixed_errors(self, error: jax.Array, valid: jax.Array) -> jax.Array:
        """The largest and the mean size of each sequence's errors, mixed: [T, B], [T, B] -> [B]."""
        size = jnp.where(valid, jnp.abs(error), 0)
        mean = size.sum(axis=0) / jnp.maximum(valid.sum(axis=0), 1)
        return self.priority_mixture * size.max(axis=0) + (1 - self.priority_mixture) * mean

    def row_errors(self, params: Any, target: Any, rows: Sequence) -> jax.Array:
        """One error for each sequence, [B], for priorities and outliers."""
        rows = time_major(rows)
        error, _ = self.sequence_errors(params, target, rows)
        return self.mixed_errors(error, rows.valid[self.burn_in :])

    def loss_gradient(self, view: View, rows: Sequence, scale: Any, key: jax.Array) -> tuple[Any, Any]:
        """Gradient of the mean loss; a sequence's loss is the mean over its steps, those not played counting zero."""
        del key
        rows = time_major(rows)
        valid = rows.valid[self.burn_in :]

        def loss(params: Any) -> tuple[jax.Array, Any]:
            error, value = self.sequence_errors(params, view.target, rows)
            total = jnp.mean(scale * jnp.where(valid, self.row_loss(error), 0))
            metrics = {"loss": total, "q_mean": value.mean(), "td_error": jnp.abs(error).mean()}
            return total, (metrics, self.mixed_errors(error, valid))

        return jax.grad(loss, has_aux=True)(view.params)
