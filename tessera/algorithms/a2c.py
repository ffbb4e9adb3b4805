"""Advantage actor-critic: the synchronous form of A3C (Mnih et al., 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import optax

from tessera.algorithms.contract import Feedback, Schedule, View
from tessera.algorithms.parts.actor_critic import ActorCriticAlgorithm
from tessera.algorithms.parts.actor_critic_types import Batch, Summary
from tessera.maths.losses import value_loss
from tessera.support.fields import option, resolved


@dataclass(frozen=True)
class A2C(ActorCriticAlgorithm):
    """One gradient per short unroll of all environments."""

    name: ClassVar[str] = "a2c"
    summary: ClassVar[str] = "advantage actor-critic: one policy gradient per short unroll, RMSProp"

    unroll: int | None = 8
    """Steps that each environment plays between updates."""
    learning_rate: float | None = 3e-3
    """Step size at the beginning."""
    rms_decay: float = option(0.99, low=0, high=1)
    """How slowly RMSProp forgets."""

    @property
    def schedule(self) -> Schedule:
        """One gradient per unroll."""
        return Schedule(resolved(self.unroll))

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """RMSProp."""
        return optax.scale_by_rms(self.rms_decay, eps=1e-5)

    def gradient(self, view: View, batch: Batch, summary: Summary, key: jax.Array) -> tuple[Any, Feedback]:
        """Policy gradient with the advantage as its weight, value loss, entropy bonus."""
        del key
        advantage = self.advantages(batch, summary)

        def loss(params: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            distribution, value = self.evaluate(params, view.statistics, batch)
            policy = self.mean(-distribution.log_prob(batch.action) * advantage, batch, summary)
            error = self.mean(value_loss(value, batch.target), batch, summary)
            entropy = self.mean(distribution.entropy(), batch, summary)
            total = policy + self.value_coefficient * error - self.entropy_bonus(entropy)
            return total, {"loss": total, "policy_loss": policy, "value_loss": error, "entropy": entropy}

        gradients, metrics = jax.grad(loss, has_aux=True)(view.params)
        return gradients, Feedback(metrics)
