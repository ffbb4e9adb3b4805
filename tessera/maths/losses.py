"""Losses and targets on rows. Every function returns one value per row."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp


def select(x: jax.Array, index: jax.Array) -> jax.Array:
    """Take x[..., index] row by row: [..., n], int [...] -> [...].

    By comparison rather than by gather: faster for a small n, above all in the gradient.
    """
    mask = jnp.arange(x.shape[-1], dtype=jnp.int32) == index[..., None]
    return jnp.sum(jnp.where(mask, x, 0), axis=-1)


def ppo_clip(log_prob: jax.Array, old_log_prob: jax.Array, advantage: jax.Array, epsilon: float) -> jax.Array:
    """PPO's clipped surrogate (Schulman et al., 2017), as a loss to minimise; all [...]."""
    ratio = jnp.exp(log_prob - old_log_prob)
    clipped = jnp.clip(ratio, 1.0 - epsilon, 1.0 + epsilon)
    return -jnp.minimum(ratio * advantage, clipped * advantage)


def kl_estimate(log_prob: jax.Array, old_log_prob: jax.Array) -> jax.Array:
    """Estimate KL(old || new) from actions of the old distribution: (ratio - 1) - log ratio, at least 0; all [...]."""
    log_ratio = log_prob - old_log_prob
    return jnp.exp(log_ratio) - 1 - log_ratio  # the compiler merges this exponential with the surrogate's


def huber(x: jax.Array, delta: float = 1.0) -> jax.Array:
    """Huber's loss: x^2 / 2 up to `delta`, then linear with slope `delta`; [...]."""
    inside = jnp.minimum(jnp.abs(x), delta)
    return 0.5 * inside**2 + delta * (jnp.abs(x) - inside)


def value_loss(value: jax.Array, target: jax.Array) -> jax.Array:
    """Half the squared error; all [...]. No gradient flows into `target`."""
    return 0.5 * jnp.square(value - jax.lax.stop_gradient(target))


def categorical_entropy(logits: jax.Array) -> jax.Array:
    """Entropy of softmax(logits) in nats: [..., n] -> [...]. A choice of probability 0 adds nothing."""
    log_p = jax.nn.log_softmax(logits)
    # Infinities are replaced before the product, because the gradient of 0 * -inf would be nan.
    return -jnp.sum(jnp.exp(log_p) * jnp.where(jnp.isfinite(log_p), log_p, 0), axis=-1)


def gaussian_entropy(log_std: jax.Array) -> jax.Array:
    """Entropy of a Gaussian with independent dimensions, in nats: [..., d] -> [...]."""
    return jnp.sum(log_std + 0.5 * (1.0 + math.log(2.0 * math.pi)), axis=-1)


def categorical_kl(logits: jax.Array, other: jax.Array) -> jax.Array:
    """KL divergence from softmax(other) to softmax(logits) in nats: the mean of log(p / q) over p; [..., n] -> [...].

    A choice of probability 0 adds nothing.
    """
    log_p, log_q = jax.nn.log_softmax(logits), jax.nn.log_softmax(other)
    # Infinities are replaced before the product, because the gradient of 0 * -inf would be nan.
    return jnp.sum(jnp.exp(log_p) * jnp.where(jnp.isfinite(log_p), log_p - log_q, 0), axis=-1)


def gaussian_kl(mean: jax.Array, log_std: jax.Array, other_mean: jax.Array, other_log_std: jax.Array) -> jax.Array:
    """KL divergence from the second Gaussian to the first, with independent dimensions, in nats: [..., d] -> [...]."""
    squares = jnp.exp(2 * log_std) + jnp.square(mean - other_mean)
    return jnp.sum(other_log_std - log_std + 0.5 * squares * jnp.exp(-2 * other_log_std) - 0.5, axis=-1)


def dueling(value: jax.Array, advantage: jax.Array, axis: int = -1) -> jax.Array:
    """Combine a state's value and its actions' advantages (Wang et al., 2016): [...], [..., n] -> q [..., n].

    `axis` is that of the actions, where each has several numbers.
    """
    return jnp.expand_dims(value, axis) + advantage - jnp.mean(advantage, axis=axis, keepdims=True)


def select_atoms(x: jax.Array, index: jax.Array) -> jax.Array:
    """Take the numbers of one action, row by row: [..., n, atoms], int [...] -> [..., atoms]."""
    return select(jnp.swapaxes(x, -1, -2), index[..., None])


def project_on_atoms(values: jax.Array, weights: jax.Array, atoms: jax.Array) -> jax.Array:
    """Share each value's weight out to the two atoms beside it (C51, Bellemare et al., 2017).

    Values and weights are [..., k], and `atoms` [m] are evenly spaced; values beyond the last atom count as that one.
    """
    step = (atoms[-1] - atoms[0]) / (atoms.shape[0] - 1)
    distance = jnp.abs(jnp.clip(values, atoms[0], atoms[-1])[..., None] - atoms) / step
    return jnp.sum(weights[..., None] * jnp.clip(1.0 - distance, 0.0, 1.0), axis=-2)


def quantile_loss(quantiles: jax.Array, targets: jax.Array, delta: float) -> jax.Array:
    """Huber's loss of quantile regression (Dabney et al., 2018), for 0 the plain one: [..., n], [..., m] -> [...].

    Quantiles stand for the middles of n equal shares. The mean over targets, summed over quantiles.
    """
    n = quantiles.shape[-1]
    middles = (jnp.arange(n, dtype=quantiles.dtype) + 0.5) / n
    error = targets[..., None, :] - quantiles[..., None]  # [..., quantile, target]
    weight = jnp.abs(middles[:, None] - (error < 0))
    cost = huber(error, delta) if delta else jnp.abs(error)
    return jnp.sum(jnp.mean(weight * cost, axis=-1), axis=-1)
