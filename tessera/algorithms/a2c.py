"""Advantage actor-critic: the synchronous form of A3C (Mnih et al., 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import optax

from tessera.algorithms.contract import Feedback, Schedule, View
from tessera.algorithms.parts.actor_critic import ActorCriticAlgorithm, Batch, Summary, mean_over_valid
from tessera.envs.base import Spec
from tessera.maths.distributions import Distribution
from tessera.maths.losses import value_loss
from tessera.support.fields import option, resolved


@dataclass(frozen=True)
class A2C(ActorCriticAlgorithm):
    """One gradient per short unroll of all environments.

    `act` and `digest` are in parts/actor_critic_acting.py, `prepare` (GAE) is in parts/actor_critic.py.
    """

    name: ClassVar[str] = "a2c"
    summary: ClassVar[str] = "advantage actor-critic: one policy gradient per short unroll, RMSProp"
    takes_turns: ClassVar[bool] = True

    unroll: int | None = 8
    """Steps that each environment plays between updates."""
    learning_rate: float | None = None
    """Step size at the beginning; default 3e-3, and 1e-2 for boards."""
    rms_decay: float = option(0.99, low=0, high=1, tunable=True)
    """How slowly RMSProp forgets."""

    def defaults_for(self, spec: Spec) -> dict[str, Any]:
        """Boards take larger steps, and more entropy."""
        boards = {"learning_rate": 1e-2, "entropy_coefficient": 0.03} if spec.boards else {}
        return {"unroll": 8, "learning_rate": 3e-3, **boards}

    @property
    def schedule(self) -> Schedule:
        """One gradient per unroll."""
        return Schedule(resolved(self.unroll))

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """RMSProp."""
        return optax.scale_by_rms(self.rms_decay, eps=1e-5)

    def gradient(self, view: View, batch: Batch, summary: Summary, key: jax.Array) -> tuple[Any, Feedback]:
        """Gradient of `a2c_loss`."""
        del key
        batch = batch._replace(advantage=self.advantages(batch, summary))
        coefficients = (self.value_coefficient, resolved(self.entropy_coefficient))

        def loss(params: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            distribution, value = self.evaluate(params, view.statistics, batch)
            return a2c_loss(distribution, value, batch, summary, *coefficients)

        gradients, metrics = jax.grad(loss, has_aux=True)(view.params)
        return gradients, Feedback(metrics)


def a2c_loss(
    distribution: Distribution,
    value: jax.Array,
    batch: Batch,
    summary: Summary,
    value_coefficient: float,
    entropy_coefficient: float,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The policy gradient's loss, weighted by advantages, plus the value loss, minus the entropy bonus.

    Args:
        distribution: over actions at each row, by the present params.
        value: [rows] by the present params.
        batch: the rows, with normalised advantages.
        summary: of the whole batch.
        value_coefficient: weight of the value loss.
        entropy_coefficient: weight of the entropy bonus.

    Returns:
        The loss and metrics.
    """

    def mean(x: jax.Array) -> jax.Array:
        return mean_over_valid(x, batch, summary)

    policy = mean(-distribution.log_prob(batch.action) * batch.advantage)
    error = mean(value_loss(value, batch.target))
    entropy = mean(distribution.entropy())
    total = policy + value_coefficient * error - entropy_coefficient * entropy
    return total, {"loss": total, "policy_loss": policy, "value_loss": error, "entropy": entropy}
