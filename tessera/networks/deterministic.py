"""Actors whose actions stay within their range, and critics that value an action."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tessera.envs.base import Box, Spec
from tessera.errors import TesseraError
from tessera.maths.distributions import SquashedGaussian, for_actions, head_size
from tessera.networks.mlp import MLP, dense, output_dtype
from tessera.networks.torsos import torso, torso_widths


def action_range(spec: Spec) -> tuple[np.ndarray, np.ndarray]:
    """The middle of an action's range and half its width, each of `shape`, float32.

    Where a bound is missing (infinite, or float32's largest number), the range has width 2: -1 to 1 without any bound,
    else next to the one bound.
    """
    low, high = box(spec).bounds()
    no_low, no_high = (np.abs(bound) >= np.finfo(np.float32).max for bound in (low, high))
    low = np.where(no_low, np.where(no_high, -1.0, high - 2.0), low)
    high = np.where(no_high, low + 2.0, high)
    return (low / 2 + high / 2).astype(np.float32), (high / 2 - low / 2).astype(np.float32)


class DeterministicActor(nn.Module):
    """A continuous action: tanh, scaled to the range of actions."""

    spec: Spec
    widths: tuple[int, ...] | None = None
    """Widths of the fully connected layers; None: the torso's usual ones."""
    torso: Any = "auto"
    """"auto", one of `TORSOS`, or a user's own."""
    activation: str = "relu"

    @nn.compact
    def __call__(self, observation: jax.Array) -> jax.Array:
        """Compute actions [..., *shape] within their range."""
        spec, actions = self.spec, box(self.spec)
        features = torso(spec, self.torso, self.widths, self.activation, gain=None)(observation)
        out = dense(actions.size, None, spec.precision, name="action")(features).astype(output_dtype(spec.precision))
        return unscaled_action(spec, jnp.tanh(out))


class SquashedGaussianActor(nn.Module):
    """A distribution over continuous actions, scaled so that each number lies between -1 and 1."""

    spec: Spec
    widths: tuple[int, ...] | None = None
    """Widths of the fully connected layers; None: the torso's usual ones."""
    torso: Any = "auto"
    """"auto", one of `TORSOS`, or a user's own."""
    activation: str = "relu"

    @nn.compact
    def __call__(self, observation: jax.Array) -> SquashedGaussian:
        """Compute the distribution; logarithms of deviations lie between -5 and 2."""
        spec, size = self.spec, box(self.spec).size
        features = torso(spec, self.torso, self.widths, self.activation, gain=None)(observation)
        out = dense(2 * size, None, spec.precision, name="action")(features).astype(output_dtype(spec.precision))
        mean, spread = jnp.split(out, 2, axis=-1)
        return SquashedGaussian(mean, -5.0 + 3.5 * (jnp.tanh(spread) + 1.0))


def unscaled_action(spec: Spec, action: jax.Array) -> jax.Array:
    """The action in its own range, [..., *shape], from numbers between -1 and 1, [..., d]."""
    middle, half = action_range(spec)
    return middle + half * action.reshape(*action.shape[:-1], *box(spec).shape)


class Chooser(nn.Module):
    """An action of any kind, without sampling: the choices with the highest ratings, or a point in the range."""

    spec: Spec
    widths: tuple[int, ...] | None = None
    """Widths of the fully connected layers; None: the torso's usual ones."""
    torso: Any = "auto"
    """"auto", one of `TORSOS`, or a user's own."""
    activation: str = "tanh"

    @nn.compact
    def __call__(self, observation: jax.Array, legal: jax.Array | None = None) -> jax.Array:
        """Compute actions [..., *shape]; of discrete ones only those that are `legal`."""
        spec = self.spec
        if isinstance(spec.actions, Box):
            return DeterministicActor(spec, self.widths, self.torso, self.activation, name="actor")(observation)
        features = torso(spec, self.torso, self.widths, self.activation, gain=None)(observation)
        head = dense(head_size(spec.actions), None, spec.precision, name="ratings")(features)
        return for_actions(spec.actions, head, legal).mode()


class ActionCritic(nn.Module):
    """The value of an action, by one or several networks that share only their inputs.

    A torso without fully connected layers reads the observation; the action, scaled to -1 to 1, joins before those
    layers.
    """

    spec: Spec
    widths: tuple[int, ...] | None = None
    """Widths of the fully connected layers; None: the torso's usual ones."""
    torso: Any = "auto"
    """"auto", one of `TORSOS`, or a user's own."""
    critics: int = 1
    """Number of networks."""
    activation: str = "relu"
    normalised: bool = False
    """Normalise each layer before its activation (layer normalisation)."""

    @nn.compact
    def __call__(self, observation: jax.Array, action: jax.Array) -> jax.Array:
        """Value actions [..., *shape] at observations [..., *observation_shape]: [..., critics]."""
        spec, actions = self.spec, box(self.spec)
        widths = torso_widths(spec, self.torso, self.widths)
        middle, half = action_range(spec)
        batch = action.shape[: action.ndim - len(actions.shape)]
        scaled = ((action - middle) / np.where(half > 0, half, 1)).reshape(*batch, actions.size)
        values = []
        for k in range(self.critics):
            features = torso(spec, self.torso, (), self.activation, gain=None)(observation)
            joined = jnp.concatenate([features, scaled.astype(features.dtype)], axis=-1)
            hidden = MLP(
                widths, self.activation, spec.precision, gain=None, normalised=self.normalised, name=f"hidden_{k}"
            )(joined)
            values.append(dense(1, None, spec.precision, name=f"value_{k}")(hidden))
        return jnp.concatenate(values, axis=-1).astype(output_dtype(spec.precision))


def box(spec: Spec) -> Box:
    """The actions as a Box; refuse others."""
    if not isinstance(spec.actions, Box):
        raise TesseraError(
            f"an action that is computed must be continuous (a Box), but this environment's actions are "
            f"{spec.actions}: choose an algorithm for discrete ones, such as DQN or PPO"
        )
    return spec.actions
