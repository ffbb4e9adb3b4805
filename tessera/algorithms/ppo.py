"""Proximal policy optimisation (Schulman et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from tessera.algorithms.contract import Feedback, Schedule, State, Step, View
from tessera.algorithms.parts.actor_critic import ActorCriticAlgorithm, Batch, Summary, mean_over_valid
from tessera.algorithms.parts.target_network import update_target
from tessera.envs.base import Box, Spec
from tessera.maths.distributions import Distribution
from tessera.maths.exploration import linear
from tessera.maths.losses import kl_estimate, ppo_clip, value_loss
from tessera.support.fields import option, resolved


@dataclass(frozen=True)
class PPO(ActorCriticAlgorithm):
    """Several passes over each unroll, with the policy held near the one that played it.

    One update, step by step:

    1. `act` samples actions and `digest` hands the unroll on: parts/actor_critic_acting.py.
    2. `prepare` computes advantages by GAE, and targets for the value: parts/actor_critic.py.
    3. `gradient` differentiates the clipped surrogate loss, for each minibatch of each epoch: `ppo_loss`, below.
    4. `apply` clips the gradient by its norm and takes Adam's step: contract.py.
    """

    name: ClassVar[str] = "ppo"
    summary: ClassVar[str] = "proximal policy optimisation: clipped surrogate, GAE, epochs of minibatches"
    takes_turns: ClassVar[bool] = True

    unroll: int | None = None
    """Steps that each environment plays between updates; default 32, and 128 for images or continuous actions."""
    learning_rate: float | None = None
    """Step size at the beginning; default 2e-3, 5e-3 for boards, 3e-4 for continuous actions, 2.5e-4 for pixels."""
    epochs: int | None = option(None, low=1)
    """Passes over each unroll; default 4, and 10 for continuous actions."""
    minibatches: int | None = option(None, low=1)
    """Gradients per pass; default 4, 8 for boards, 32 for continuous actions."""
    clip: float = option(0.2, low=0, tunable=True)
    """How far the probability of an action may move before its gradient stops."""
    entropy_end: float | None = option(None, low=0)
    """Weight of the entropy bonus at the end of the run, in a straight line from the beginning; default: it stays."""
    magnet: float = option(0.0, low=0)
    """Weight of the divergence from the magnet, a slow copy of the policy (Sokota et al., 2023); 0: there is none."""
    magnet_end: float | None = option(None, low=0)
    """That weight at the end of the run, in a straight line from the beginning: smaller and smaller steps; default: it
    stays."""
    magnet_period: int = option(1000, low=1)
    """Gradients between copies of the params to the magnet."""

    def defaults_for(self, spec: Spec) -> dict[str, Any]:
        """The usual settings for each kind of task: classic control, boards, pixels, continuous control."""
        continuous, images, pixels, boards = isinstance(spec.actions, Box), spec.images, spec.pixels, spec.boards
        return {
            "unroll": 128 if continuous or images else 32,
            "learning_rate": 3e-4 if continuous else 2.5e-4 if pixels else 5e-3 if boards else 2e-3,
            "epochs": 10 if continuous else 4,
            "minibatches": 32 if continuous else 8 if boards else 4,
            # a core's outputs are bounded, and values near 100 would crowd the policy out of the clipped gradient
            "normalise_rewards": continuous or self.recurrent,
        }

    @property
    def schedule(self) -> Schedule:
        """Unroll, then epochs of minibatches."""
        return Schedule(resolved(self.unroll), epochs=resolved(self.epochs), minibatches=resolved(self.minibatches))

    @property
    def target_period(self) -> int | None:
        """Gradients between copies of the params to the magnet, which is the state's `target`; None: there is none."""
        return self.magnet_period if self.magnet else None

    def start(self, params: Any) -> State:
        """Begin with the magnet equal to the params."""
        state = super().start(params)
        return state._replace(target=params) if self.magnet else state

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """Adam."""
        return optax.scale_by_adam(eps=1e-5)

    def gradient(self, view: View, batch: Batch, summary: Summary, key: jax.Array) -> tuple[Any, Feedback]:
        """Gradient of `ppo_loss` on a minibatch."""
        del key
        batch = batch._replace(advantage=self.advantages(batch, summary))
        entropy = _annealed(view, resolved(self.entropy_coefficient), self.entropy_end)
        pull = _annealed(view, self.magnet, self.magnet_end)
        magnet = self.evaluate(view.target, view.statistics, batch)[0] if self.magnet else None
        coefficients = (self.clip, self.value_coefficient, entropy, pull)

        def loss(params: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            distribution, value = self.evaluate(params, view.statistics, batch)
            return ppo_loss(distribution, value, batch, summary, *coefficients, magnet)

        gradients, metrics = jax.grad(loss, has_aux=True)(view.params)
        return gradients, Feedback(metrics)

    def apply(self, state: State, gradients: Any, step: Step) -> State:
        """Step, and copy the params to the magnet where that is due."""
        state = super().apply(state, gradients, step)
        return update_target(state, self.magnet_period) if self.magnet else state


def _annealed(view: View, start: float, end: float | None) -> Any:
    """A weight now: on a straight line from its value at the beginning of the run to that at the end, if it has one."""
    return start if end is None else linear(view.clock.progress, start, end)


def ppo_loss(
    distribution: Distribution,
    value: jax.Array,
    batch: Batch,
    summary: Summary,
    clip: float,
    value_coefficient: float,
    entropy_coefficient: Any,
    magnet_coefficient: Any = 0.0,
    magnet: Distribution | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The clipped surrogate, plus the value loss, minus the entropy bonus: (loss, metrics).

    Args:
        distribution: over actions at each row, by the present params.
        value: [rows] by the present params.
        batch: the rows, with normalised advantages.
        summary: of the whole batch.
        clip: how far the probability of an action may move before its gradient stops.
        value_coefficient: weight of the value loss.
        entropy_coefficient: weight of the entropy bonus.
        magnet_coefficient: weight of the divergence from the magnet.
        magnet: its distribution over actions at each row; None: there is none.
    """

    def mean(x: jax.Array) -> jax.Array:
        return mean_over_valid(x, batch, summary)

    log_prob = distribution.log_prob(batch.action)
    policy = mean(ppo_clip(log_prob, batch.log_prob, batch.advantage, clip))
    error = mean(value_loss(value, batch.target))
    entropy = mean(distribution.entropy())
    total = policy + value_coefficient * error - entropy_coefficient * entropy
    drawn: dict[str, jax.Array] = {}
    if magnet is not None:
        drawn["magnet_kl"] = mean(distribution.kl(magnet))  # type: ignore[arg-type]  # both are of one kind
        total = total + magnet_coefficient * drawn["magnet_kl"]
    moved = jnp.abs(jnp.exp(log_prob - batch.log_prob) - 1) > clip
    return total, {
        "loss": total,
        "policy_loss": policy,
        "value_loss": error,
        "entropy": entropy,
        "kl": mean(kl_estimate(log_prob, batch.log_prob)),
        "clip_fraction": mean(moved.astype(value.dtype)),
        **drawn,
    }
