"""Networks as a user may write them."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx


class Features(nn.Module):
    """A torso of linen, for any observation, trees too."""

    width: int = 8

    @nn.compact
    def __call__(self, observation: Any) -> jax.Array:
        parts = jax.tree.leaves(observation)
        lead = 2 if isinstance(observation, dict) else parts[0].ndim - 1
        flat = [x.reshape(*x.shape[:lead], -1).astype(jnp.float32) for x in parts]
        return nn.relu(nn.Dense(self.width)(jnp.concatenate(flat, axis=-1)))


class VectorFeatures(nnx.Module):
    """A torso of nnx, for CartPole."""

    def __init__(self, width: int = 8, *, rngs: nnx.Rngs) -> None:
        self.layer = nnx.Linear(4, width, rngs=rngs)

    def __call__(self, observation: jax.Array) -> jax.Array:
        return nnx.relu(self.layer(observation))


class PolicyAndValue(nn.Module):
    """A whole network for CartPole."""

    @nn.compact
    def __call__(self, observation: jax.Array) -> tuple[jax.Array, jax.Array]:
        hidden = nn.tanh(nn.Dense(16)(observation))
        return nn.Dense(2)(hidden), nn.Dense(1)(hidden)[..., 0]


class Values(nn.Module):
    """Values of CartPole's actions."""

    actions: int = 2

    @nn.compact
    def __call__(self, observation: jax.Array) -> jax.Array:
        return nn.Dense(self.actions)(nn.relu(nn.Dense(16)(observation)))


class ForgetsTheBatch(nn.Module):
    """Wrong: leading axes are flattened away."""

    @nn.compact
    def __call__(self, observation: jax.Array) -> jax.Array:
        return nn.Dense(8)(observation.reshape(-1))


class Fails(nn.Module):
    """Wrong: it cannot read the observation."""

    def __call__(self, observation: jax.Array) -> jax.Array:
        return observation @ jnp.ones((7, 3))


class NoNetwork:
    """Wrong: no module at all."""
