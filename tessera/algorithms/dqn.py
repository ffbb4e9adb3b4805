"""Deep Q-networks (Mnih et al., 2015), with the usual extensions as flags of the same algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from tessera.algorithms.parts.n_step_windows import Row
from tessera.algorithms.parts.value_learning import ValueLearning
from tessera.envs.base import Spec
from tessera.maths.losses import huber, select
from tessera.support.fields import option


@dataclass(frozen=True)
class DQN(ValueLearning):
    """Q-learning from replayed experience, with a target network.

    One update, step by step:

    1. `act` takes epsilon-greedy actions: parts/epsilon_greedy.py.
    2. `digest` makes n-step windows, `prepare` importance weights of a draw: parts/replay_learning.py.
    3. `loss_gradient` differentiates the loss of temporal-difference errors: `targets` and `row_losses`, below, in
       parts/value_learning.py.
    4. `apply` takes the step and updates the target network: parts/replay_learning.py.
    """

    name: ClassVar[str] = "dqn"
    summary: ClassVar[str] = "deep Q-network: replay and target network; double, dueling, prioritised, n-step as flags"
    takes_turns: ClassVar[bool] = True

    huber: float | None = option(None, low=0)
    """Errors beyond this count linearly and no longer squared (Huber); 0: never. Default 1 for images, else 0."""

    def defaults_for(self, spec: Spec) -> dict[str, Any]:
        """Huber's loss for images."""
        return {**super().defaults_for(spec), "huber": float(spec.images)}

    def targets(self, params: Any, target: Any, rows: Row, keys: tuple[Any, Any] = (None, None)) -> jax.Array:
        """What the values of the actions taken should be, [B]."""
        q_t, action = self.next_outputs(params, target, rows, keys)
        return rows.reward + rows.discount * select(q_t, action)

    def row_losses(
        self, params: Any, targets: jax.Array, rows: Row, key: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Loss, temporal-difference error (value minus target) and value of each row, [B] each."""
        value = select(self.outputs(params, rows.observation, key), rows.action)
        error = value - targets
        return self.row_loss(error), error, value

    def row_loss(self, error: jax.Array) -> jax.Array:
        """Huber's loss, or half the square."""
        return huber(error, self.huber) if self.huber else super().row_loss(error)
