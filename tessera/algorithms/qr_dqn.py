"""QR-DQN: Q-learning of the quantiles of returns (Dabney et al., 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from tessera.algorithms.parts.n_step_windows import Row
from tessera.algorithms.parts.value_learning import ValueLearning
from tessera.maths.losses import quantile_loss, select_atoms
from tessera.support.fields import option


@dataclass(frozen=True)
class QRDQN(ValueLearning):
    """The network learns quantiles of each action's return; an action's value is their mean.

    An update is that of DQN (dqn.py), with the loss of quantile regression as a row's loss and error.
    """

    name: ClassVar[str] = "qr_dqn"
    summary: ClassVar[str] = "DQN that learns quantiles of the distribution of returns"
    takes_turns: ClassVar[bool] = True

    quantiles: int = option(51, low=1)
    """Quantiles of each action's return."""
    huber: float = option(1.0, low=0)
    """Errors beyond this count linearly and no longer squared; 0: all of them."""

    @property
    def outputs_per_action(self) -> int | None:
        """Quantiles of each action."""
        return self.quantiles

    def mean_values(self, outputs: jax.Array) -> jax.Array:
        """Action values, [..., n], from quantiles [..., n, quantiles]."""
        return outputs.mean(axis=-1)

    def targets(self, params: Any, target: Any, rows: Row, keys: tuple[Any, Any] = (None, None)) -> jax.Array:
        """Quantiles of what the next action returns, moved by the reward, [B, quantiles]."""
        quantiles, action = self.next_outputs(params, target, rows, keys)
        return rows.reward[:, None] + rows.discount[:, None] * select_atoms(quantiles, action)

    def row_losses(
        self, params: Any, targets: jax.Array, rows: Row, key: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Loss of quantile regression, as loss and as error, and value of each row, [B] each."""
        quantiles = select_atoms(self.outputs(params, rows.observation, key), rows.action)
        loss = quantile_loss(quantiles, targets, self.huber)
        return loss, loss, quantiles.mean(axis=-1)

    def row_loss(self, error: jax.Array) -> jax.Array:
        """The error is the loss."""
        return error
