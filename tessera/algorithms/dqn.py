"""Deep Q-networks (Mnih et al., 2015), with the usual extensions as flags of the same algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from tessera.algorithms.contract import View
from tessera.algorithms.parts.epsilon_greedy import EpsilonGreedyAlgorithm
from tessera.algorithms.parts.n_step_windows import Row, ValueMemory
from tessera.algorithms.parts.replay_learning import ReplayAlgorithm
from tessera.envs.base import Spec
from tessera.maths.losses import double_q_target, huber, q_target, select
from tessera.support.fields import option


@dataclass(frozen=True)
class DQN(EpsilonGreedyAlgorithm, ReplayAlgorithm):
    """Q-learning from replayed experience, with a target network.

    One update, step by step:

    1. `act` takes epsilon-greedy actions: parts/epsilon_greedy.py.
    2. `digest` makes n-step windows, `prepare` importance weights of a draw: parts/replay_learning.py.
    3. `loss_gradient`, below, differentiates the loss of temporal-difference errors.
    4. `apply` takes the step and updates the target network: parts/replay_learning.py.
    """

    name: ClassVar[str] = "dqn"
    summary: ClassVar[str] = "deep Q-network: replay and target network; double, dueling, prioritised, n-step as flags"

    n_step: int | None = option(None, low=1)
    """Steps whose rewards are summed before the bootstrap; default 1 for images, else 3."""
    learning_rate: float | None = option(None, low=0)
    """Step size at the beginning; default 5e-4 for images, else 1e-3."""
    double: bool = True
    """Let the online network choose the action that the target network values (van Hasselt et al., 2016)."""
    huber: float | None = option(None, low=0)
    """Errors beyond this count linearly and no longer squared (Huber); 0: never. Default 1 for images, else 0."""

    def defaults_for(self, spec: Spec) -> dict[str, Any]:
        """Images: small steps, windows of one step and Huber's loss, with which no game of MinAtar collapses."""
        if len(spec.observation_shape) == 3:
            return {"learning_rate": 5e-4, "n_step": 1, "huber": 1.0}
        return {"learning_rate": 1e-3, "n_step": 3, "huber": 0.0}

    def memory(self, env_id: jax.Array) -> ValueMemory:
        """No steps yet, and the environment's own exploration rate."""
        return super().memory(env_id)._replace(exploration=self.exploration_rate(env_id))

    def targets(self, params: Any, target: Any, rows: Row) -> jax.Array:
        """What the values of the actions taken should be, [B]; no gradient flows into them."""
        q_t = self.network.apply(target, rows.bootstrap)
        if not self.double:
            return q_target(rows.reward, rows.discount, q_t)
        return double_q_target(rows.reward, rows.discount, q_t, self.network.apply(params, rows.bootstrap))

    def td_errors(self, params: Any, targets: jax.Array, rows: Row) -> tuple[jax.Array, jax.Array]:
        """Temporal-difference errors, value minus target, and the values: [B] each."""
        q_tm1 = select(self.network.apply(params, rows.observation), rows.action)
        return q_tm1 - targets, q_tm1

    def row_errors(self, params: Any, target: Any, rows: Row) -> jax.Array:
        """Temporal-difference errors, [B]."""
        return self.td_errors(params, self.targets(params, target, rows), rows)[0]

    def row_loss(self, error: jax.Array) -> jax.Array:
        """Huber's loss, or half the square."""
        return huber(error, self.huber) if self.huber else super().row_loss(error)

    def loss_gradient(self, view: View, rows: Row, scale: Any, key: jax.Array) -> tuple[Any, Any]:
        """Gradient of the mean loss of temporal-difference errors."""
        del key
        targets = self.targets(view.params, view.target, rows)

        def loss(params: Any) -> tuple[jax.Array, Any]:
            error, value = self.td_errors(params, targets, rows)
            total = jnp.mean(scale * self.row_loss(error))
            return total, ({"loss": total, "q_mean": value.mean(), "td_error": jnp.abs(error).mean()}, error)

        return jax.grad(loss, has_aux=True)(view.params)
