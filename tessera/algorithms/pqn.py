"""PQN: Q-learning from many environments at once, without replay and target network (Gallici et al., 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import optax

from tessera.algorithms.contract import Schedule, View
from tessera.algorithms.parts.n_step_windows import ValueMemory
from tessera.algorithms.parts.values_of_unrolls import TargetBatch, ValuesOfUnrolls
from tessera.maths.exploration import best_value
from tessera.maths.returns import generalised_advantage
from tessera.networks import QNetwork
from tessera.stores.base import Sample
from tessera.support.fields import option


@dataclass(frozen=True)
class PQN(ValuesOfUnrolls):
    """Targets look ahead by lambda-returns; layer normalisation keeps values from diverging.

    An unroll is learned from several times, in minibatches, and then dropped. `act` is in parts/epsilon_greedy.py.
    """

    name: ClassVar[str] = "pqn"
    default_envs: ClassVar[int] = 64
    summary: ClassVar[str] = "Q-learning in parallel: lambda-returns and layer normalisation, no replay and no target"

    unroll: int = option(32, low=1)
    """Steps that each environment plays between updates."""
    epochs: int = option(4, low=1)
    """Passes over each unroll."""
    minibatches: int = option(8, low=1)
    """Gradients per pass."""
    learning_rate: float = option(1e-3, low=0, tunable=True)
    """Step size at the beginning."""
    look_ahead: float = option(0.65, low=0, high=1, tunable=True)
    """Lambda: how far targets look ahead, from 0 (one step) to 1 (to the end)."""
    max_gradient_norm: float = option(10.0, low=0)
    """Gradients are scaled down to this global norm; 0 leaves them alone."""

    @property
    def model(self) -> Any:
        """The network, as a Flax module."""
        return self.own_or(QNetwork(self.world, self.widths, self.torso, self.dueling, normalised=True))

    @property
    def schedule(self) -> Schedule:
        """Several passes over each unroll, in minibatches."""
        return Schedule(self.unroll, epochs=self.epochs, minibatches=self.minibatches)

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """Rectified Adam."""
        return optax.scale_by_radam()

    def memory(self, env_id: jax.Array) -> ValueMemory:
        """The environment's own exploration rate."""
        return ValueMemory(exploration=self.exploration_rate(env_id))

    def prepare(self, view: View, sample: Sample) -> tuple[TargetBatch, Any]:
        """Compute the lambda-returns of one group's unroll [T, n], and turn it into rows."""
        rows = sample.rows
        v_tm1, v_t = (
            best_value(self.model.apply(view.params, seen), legal)
            for seen, legal in ((rows.observation, rows.legal), (rows.next_observation, rows.next_legal))
        )
        ends = (rows.terminated, rows.truncated)
        ahead = generalised_advantage(rows.reward, v_tm1, v_t, *ends, self.gamma, self.look_ahead)
        return self.rows_of(rows, v_tm1 + ahead)
