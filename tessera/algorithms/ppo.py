"""Proximal policy optimisation (Schulman et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from tessera.algorithms.contract import Feedback, Schedule, View
from tessera.algorithms.parts.actor_critic import ActorCriticAlgorithm
from tessera.algorithms.parts.actor_critic_types import Batch, Summary
from tessera.envs.base import Box, Spec
from tessera.maths.losses import kl_estimate, ppo_clip, value_loss
from tessera.support.fields import option, resolved


@dataclass(frozen=True)
class PPO(ActorCriticAlgorithm):
    """Several passes over each unroll, with the policy held near the one that played it."""

    name: ClassVar[str] = "ppo"
    summary: ClassVar[str] = "proximal policy optimisation: clipped surrogate, GAE, epochs of minibatches"

    unroll: int | None = None
    """Steps that each environment plays between updates; default 32, and 128 for images or continuous actions."""
    learning_rate: float | None = None
    """Step size at the beginning; default 2e-3, 3e-4 for continuous actions, 2.5e-4 for pixels."""
    epochs: int | None = option(None, low=1)
    """Passes over each unroll; default 4, and 10 for continuous actions."""
    minibatches: int | None = option(None, low=1)
    """Gradients per pass; default 4, and 32 for continuous actions."""
    clip: float = option(0.2, low=0)
    """How far the probability of an action may move before its gradient stops."""

    def chosen(self, spec: Spec) -> dict[str, Any]:
        """The settings usual for each kind of task: classic control, images, continuous control."""
        continuous, images = isinstance(spec.actions, Box), len(spec.observation_shape) == 3
        pixels = spec.observation_dtype == "uint8"
        return {
            "unroll": 128 if continuous or images else 32,
            "learning_rate": 3e-4 if continuous else 2.5e-4 if pixels else 2e-3,
            "epochs": 10 if continuous else 4,
            "minibatches": 32 if continuous else 4,
            # what a core gives is bounded, and values near 100 would crowd the policy out of the clipped gradient
            "normalise_rewards": continuous or self.recurrent,
        }

    @property
    def schedule(self) -> Schedule:
        """Unroll, then epochs of minibatches."""
        return Schedule(resolved(self.unroll), epochs=resolved(self.epochs), minibatches=resolved(self.minibatches))

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """Adam."""
        return optax.scale_by_adam(eps=1e-5)

    def gradient(self, view: View, batch: Batch, summary: Summary, key: jax.Array) -> tuple[Any, Feedback]:
        """Gradient of the clipped surrogate, the value loss and the entropy bonus."""
        del key
        advantage = self.advantages(batch, summary)

        def loss(params: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            distribution, value = self.evaluate(params, view.statistics, batch)
            log_prob = distribution.log_prob(batch.action)
            policy = self.mean(ppo_clip(log_prob, batch.log_prob, advantage, self.clip), batch, summary)
            error = self.mean(value_loss(value, batch.target), batch, summary)
            entropy = self.mean(distribution.entropy(), batch, summary)
            total = policy + self.value_coefficient * error - self.entropy_bonus(entropy)
            moved = jnp.abs(jnp.exp(log_prob - batch.log_prob) - 1) > self.clip
            return total, {
                "loss": total,
                "policy_loss": policy,
                "value_loss": error,
                "entropy": entropy,
                "kl": self.mean(kl_estimate(log_prob, batch.log_prob), batch, summary),
                "clip_fraction": self.mean(moved.astype(value.dtype), batch, summary),
            }

        gradients, metrics = jax.grad(loss, has_aux=True)(view.params)
        return gradients, Feedback(metrics)
