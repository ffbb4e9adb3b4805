"""What Q-learning and PQN share: action values that are learned from each unroll as it comes, without a replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tessera.algorithms.contract import Feedback, Transition, View
from tessera.algorithms.parts.epsilon_greedy import EpsilonGreedyAlgorithm
from tessera.maths.losses import select
from tessera.support.fields import option


class TargetBatch(NamedTuple):
    """Rows to learn from."""

    observation: jax.Array
    action: jax.Array
    target: jax.Array
    valid: jax.Array | None


@dataclass(frozen=True)
class ValuesOfUnrolls(EpsilonGreedyAlgorithm):
    """Fields and functions common to Q-learning and PQN. An algorithm adds `prepare`, which computes targets."""

    unroll: int = option(5, low=1)
    """Steps that each environment plays between updates."""
    learning_rate: float = option(2e-3, low=0, tunable=True)
    """Step size at the beginning."""
    anneal: bool = True
    """Let the learning rate fall to zero, in a straight line, by the end of the run."""
    gamma: float = option(0.99, low=0, high=1, tunable=True)
    """Discount per step."""
    max_gradient_norm: float = option(0.5, low=0)
    """Gradients are scaled down to this global norm; 0 leaves them alone."""

    def rows_of(self, rows: Transition, target: jax.Array) -> tuple[TargetBatch, jax.Array]:
        """One group's unroll [T, n] as rows, each with its target; the summary is the share of rows that count."""
        batch = TargetBatch(rows.observation, rows.action, target, rows.valid)
        batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
        return batch, jnp.ones(()) if rows.valid is None else rows.valid.mean(dtype=jnp.result_type(float))

    def gradient(self, view: View, batch: TargetBatch, summary: jax.Array, key: jax.Array) -> tuple[Any, Feedback]:
        """Gradient of half the squared errors."""
        del key
        weight = 1.0 if batch.valid is None else batch.valid / jnp.maximum(summary.mean(), 1e-8)

        def loss(params: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            value = select(self.model.apply(params, batch.observation), batch.action)
            error = value - batch.target
            total = jnp.mean(weight * 0.5 * jnp.square(error))
            return total, {"loss": total, "q_mean": value.mean(), "td_error": jnp.mean(weight * jnp.abs(error))}

        gradients, metrics = jax.grad(loss, has_aux=True)(view.params)
        return gradients, Feedback(metrics)
