"""C51: Q-learning of whole distributions of returns (Bellemare et al., 2017); Rainbow is C51 with DQN's extensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from tessera.algorithms.parts.n_step_windows import Row
from tessera.algorithms.parts.value_learning import ValueLearning
from tessera.envs.base import Spec
from tessera.errors import TesseraError
from tessera.maths.losses import project_on_atoms, select_atoms
from tessera.support.fields import option, resolved


@dataclass(frozen=True)
class C51(ValueLearning):
    """The network learns a probability for each of a few fixed returns, the atoms; an action's value is their mean.

    An update is that of DQN (dqn.py), with the cross-entropy to the target's distribution as a row's loss and error.
    """

    name: ClassVar[str] = "c51"
    summary: ClassVar[str] = "DQN that learns the distribution of returns, on fixed atoms; Rainbow's pieces as flags"
    takes_turns: ClassVar[bool] = True

    atoms: int | None = option(None, low=2)
    """Number of returns that probabilities are learned for; default 51 for images, else 101."""
    lowest: float | None = option(None, low=-1e6, high=1e6)
    """The lowest of them; default -10 for pixels, -25 for boards, else -100."""
    highest: float | None = option(None, low=-1e6, high=1e6)
    """The highest; default 10 for pixels, 25 for boards, else 100."""

    def defaults_for(self, spec: Spec) -> dict[str, Any]:
        """Atoms as in the paper for pixels, whose rewards are clipped; wider elsewhere."""
        reach, atoms = (10.0, 51) if spec.pixels else (25.0, 51) if spec.boards else (100.0, 101)
        more = {"learning_rate": 1e-3} if spec.boards and self.noisy else {}
        return {**super().defaults_for(spec), **more, "atoms": atoms, "lowest": -reach, "highest": reach}

    def check(self) -> None:
        """Refuse atoms that are not in order."""
        super().check()
        if resolved(self.lowest) >= resolved(self.highest):
            raise TesseraError(f"--lowest {self.lowest} is not below --highest {self.highest}: no return lies between")

    @property
    def outputs_per_action(self) -> int | None:
        """Probabilities of each action."""
        return self.atoms

    @property
    def returns(self) -> jax.Array:
        """The atoms, [atoms]."""
        return jnp.linspace(resolved(self.lowest), resolved(self.highest), resolved(self.atoms))

    def mean_values(self, outputs: jax.Array) -> jax.Array:
        """Action values, [..., n], from logits [..., n, atoms]."""
        return jax.nn.softmax(outputs) @ self.returns.astype(outputs.dtype)

    def targets(self, params: Any, target: Any, rows: Row, keys: tuple[Any, Any] = (None, None)) -> jax.Array:
        """The distribution of what the next action returns, moved by the reward and shared out to the atoms."""
        logits, action = self.next_outputs(params, target, rows, keys)
        moved = rows.reward[:, None] + rows.discount[:, None] * self.returns
        return project_on_atoms(moved, jax.nn.softmax(select_atoms(logits, action)), self.returns)

    def row_losses(
        self, params: Any, targets: jax.Array, rows: Row, key: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Cross-entropy, as loss and as error, and value of each row, [B] each."""
        logits = select_atoms(self.outputs(params, rows.observation, key), rows.action)
        loss = -jnp.sum(targets * jax.nn.log_softmax(logits), axis=-1)
        return loss, loss, self.mean_values(logits)

    def row_loss(self, error: jax.Array) -> jax.Array:
        """The error is the loss."""
        return error
