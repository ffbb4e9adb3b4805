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


def q_target(r_t: jax.Array, discount_t: jax.Array, q_t: jax.Array) -> jax.Array:
    """Q-learning's target r_t + discount_t * max_a q_t(a): [...], [...], [..., n] -> [...], without gradient."""
    return jax.lax.stop_gradient(r_t + discount_t * jnp.max(q_t, axis=-1))


def double_q_target(r_t: jax.Array, discount_t: jax.Array, q_t: jax.Array, q_t_selector: jax.Array) -> jax.Array:
    """Double Q-learning's target: `q_t` values the action that `q_t_selector` prefers (van Hasselt et al., 2016).

    Shapes [...], [...], [..., n], [..., n] -> [...], without gradient.
    """
    return jax.lax.stop_gradient(r_t + discount_t * select(q_t, jnp.argmax(q_t_selector, axis=-1)))


def dueling(value: jax.Array, advantage: jax.Array) -> jax.Array:
    """Combine a state's value and its actions' advantages (Wang et al., 2016): [...], [..., n] -> q [..., n]."""
    return value[..., None] + advantage - jnp.mean(advantage, axis=-1, keepdims=True)
