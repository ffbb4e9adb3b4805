"""Distributions over actions, built from the flat output of a network's head."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from tessera.envs.base import Actions, Box, Discrete, MultiDiscrete
from tessera.maths.losses import categorical_entropy, categorical_kl, gaussian_entropy, gaussian_kl, select

# Up to this many choices a categorical draw is written out; see `inverse_cdf`.
_FEW = 32


def inverse_cdf(weights: jax.Array, uniform: jax.Array, unroll: bool = False) -> jax.Array:
    """Choose an index in proportion to its weight: weights >= 0 [..., n], uniform in [0, 1) [...] -> int32 [...].

    The choice is the last index of positive weight whose sum of earlier weights does not exceed uniform * total. So it
    is never an index of weight 0 and never n, however sums round; if all weights are 0, it is index 0.

    With `unroll` the sum is written out weight by weight, so that it fuses with the operations before it. On CPUs this
    is up to three times as fast for few actions in many rows, but slower for weights that were just gathered.
    """
    n = weights.shape[-1]
    if not unroll:
        sums = jnp.cumsum(weights, axis=-1)
        before = jnp.concatenate([jnp.zeros_like(sums[..., :1]), sums[..., :-1]], axis=-1)
        possible = (before <= (uniform * sums[..., -1])[..., None]) & (weights > 0)
        return jnp.max(jnp.where(possible, jnp.arange(n, dtype=jnp.int32), 0), axis=-1)
    befores = [jnp.zeros_like(weights[..., 0])]
    for i in range(n):
        befores.append(befores[-1] + weights[..., i])
    threshold = uniform * befores[-1]
    index = jnp.zeros(threshold.shape, jnp.int32)
    for i in range(1, n):
        index = jnp.where((befores[i] <= threshold) & (weights[..., i] > 0), i, index)
    return index


@partial(jax.tree_util.register_dataclass, data_fields=["logits"], meta_fields=[])
@dataclass(frozen=True)
class Categorical:
    """One choice out of n, with probabilities softmax(logits)."""

    logits: jax.Array
    """[..., n]; -inf forbids a choice."""

    def sample(self, key: jax.Array) -> jax.Array:
        """Draw int32 [...], each from one uniform number: cheaper than Gumbel noise on every logit."""
        uniform = jax.random.uniform(key, self.logits.shape[:-1], self.logits.dtype)
        return self._choose(uniform)

    def _choose(self, uniform: jax.Array) -> jax.Array:
        return inverse_cdf(jax.nn.softmax(self.logits), uniform, unroll=self.logits.shape[-1] <= _FEW)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Log-probability of int [...] -> [...]; finite wherever the logits are."""
        return select(jax.nn.log_softmax(self.logits), action)

    def entropy(self) -> jax.Array:
        """Entropy in nats, [...]."""
        return categorical_entropy(self.logits)

    def kl(self, other: Categorical) -> jax.Array:
        """KL divergence from `other` to this one, in nats, [...]: the mean of log(this / other) over this one."""
        return categorical_kl(self.logits, other.logits)

    def mode(self) -> jax.Array:
        """The likeliest choice, int32 [...]."""
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)


@partial(jax.tree_util.register_dataclass, data_fields=["logits"], meta_fields=["choices"])
@dataclass(frozen=True)
class MultiCategorical:
    """Several independent choices at once."""

    logits: jax.Array
    """[..., sum(choices)]: the logits of all choices, one after the other."""
    choices: tuple[int, ...]
    """Number of alternatives of each choice."""

    def parts(self) -> list[Categorical]:
        """Each choice on its own."""
        ends = [sum(self.choices[: i + 1]) for i in range(len(self.choices))]
        return [Categorical(self.logits[..., end - n : end]) for n, end in zip(self.choices, ends, strict=True)]

    def sample(self, key: jax.Array) -> jax.Array:
        """Draw int32 [..., len(choices)], one uniform number for each choice."""
        uniform = jax.random.uniform(key, (*self.logits.shape[:-1], len(self.choices)), self.logits.dtype)
        choices = [p._choose(uniform[..., i]) for i, p in enumerate(self.parts())]
        return jnp.stack(choices, axis=-1)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Log-probability of int [..., len(choices)] -> [...]."""
        return sum((p.log_prob(action[..., i]) for i, p in enumerate(self.parts())), jnp.zeros(()))

    def entropy(self) -> jax.Array:
        """Entropy in nats, [...]."""
        return sum((p.entropy() for p in self.parts()), jnp.zeros(()))

    def kl(self, other: MultiCategorical) -> jax.Array:
        """KL divergence from `other` to this one, in nats, [...]."""
        return sum((p.kl(q) for p, q in zip(self.parts(), other.parts(), strict=True)), jnp.zeros(()))

    def mode(self) -> jax.Array:
        """The likeliest of each choice, int32 [..., len(choices)]."""
        return jnp.stack([p.mode() for p in self.parts()], axis=-1)


@partial(jax.tree_util.register_dataclass, data_fields=["mean", "log_std"], meta_fields=["shape"])
@dataclass(frozen=True)
class DiagonalGaussian:
    """Independent normal distributions, each with its own mean and deviation. Samples are not clipped to bounds."""

    mean: jax.Array
    """[..., d], flat in C order."""
    log_std: jax.Array
    """[..., d]."""
    shape: tuple[int, ...]
    """The shape of one action, of d numbers."""

    def _shaped(self, flat: jax.Array) -> jax.Array:
        return flat.reshape(*flat.shape[:-1], *self.shape)

    def sample(self, key: jax.Array) -> jax.Array:
        """Draw [..., *shape]."""
        noise = jax.random.normal(key, self.mean.shape, self.mean.dtype)
        return self._shaped(self.mean + jnp.exp(self.log_std) * noise)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Log-density of [..., *shape] -> [...]."""
        batch = action.shape[: action.ndim - len(self.shape)]
        z = (action.reshape(*batch, self.mean.shape[-1]) - self.mean) * jnp.exp(-self.log_std)
        return jnp.sum(-0.5 * jnp.square(z) - self.log_std - 0.5 * math.log(2.0 * math.pi), axis=-1)

    def entropy(self) -> jax.Array:
        """Entropy in nats, [...]."""
        return gaussian_entropy(jnp.broadcast_to(self.log_std, self.mean.shape))

    def kl(self, other: DiagonalGaussian) -> jax.Array:
        """KL divergence from `other` to this one, in nats, [...]."""
        return gaussian_kl(self.mean, self.log_std, other.mean, other.log_std)

    def mode(self) -> jax.Array:
        """The mean, [..., *shape]."""
        return self._shaped(self.mean)


@partial(jax.tree_util.register_dataclass, data_fields=["mean", "log_std"], meta_fields=[])
@dataclass(frozen=True)
class SquashedGaussian:
    """Independent normal distributions behind tanh: numbers between -1 and 1 (Haarnoja et al., 2018)."""

    mean: jax.Array
    """[..., d], before tanh."""
    log_std: jax.Array
    """[..., d], before tanh."""

    def sample(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Draw [..., d], with the log-density [...] of what was drawn."""
        noise = jax.random.normal(key, self.mean.shape, self.mean.dtype)
        before = self.mean + jnp.exp(self.log_std) * noise
        normal = -0.5 * jnp.square(noise) - self.log_std - 0.5 * math.log(2.0 * math.pi)
        # log(1 - tanh(x)^2), without cancellation for large x
        slope = 2.0 * (math.log(2.0) - before - jax.nn.softplus(-2.0 * before))
        return jnp.tanh(before), jnp.sum(normal - slope, axis=-1)

    def mode(self) -> jax.Array:
        """What the mean becomes, [..., d]."""
        return jnp.tanh(self.mean)


Distribution = Categorical | MultiCategorical | DiagonalGaussian


def head_size(actions: Actions) -> int:
    """How many numbers `for_actions` needs; for a Box, all means and then the logarithms of all deviations."""
    match actions:
        case Discrete(n):
            return n
        case MultiDiscrete(choices):
            return sum(choices)
        case Box():
            return 2 * actions.size
    raise TypeError(f"no distribution for actions {actions!r}")


FORBIDDEN = -1e9
"""The logit of an action that is not allowed: its probability is 0, and gradients stay finite."""


def only_legal(logits: jax.Array, legal: jax.Array | None) -> jax.Array:
    """Logits [..., n] with those of actions that are not allowed replaced by `FORBIDDEN`, or by less where others are
    as low: a network that has gone astray must not take such an action either."""
    if legal is None:
        return logits
    lowest = jnp.minimum(jax.lax.stop_gradient(logits).min(-1, keepdims=True), 0)
    return jnp.where(legal, logits, FORBIDDEN + 2 * lowest)


def for_actions(actions: Actions, head_output: jax.Array, legal: jax.Array | None = None) -> Distribution:
    """Make the distribution over `actions` from [..., head_size(actions)]; over those that are `legal`, if given."""
    match actions:
        case Discrete():
            return Categorical(only_legal(head_output, legal))
        case MultiDiscrete(choices):
            return MultiCategorical(only_legal(head_output, legal), choices)
        case Box(shape):
            mean, log_std = jnp.split(head_output, 2, axis=-1)
            return DiagonalGaussian(mean, log_std, shape)
    raise TypeError(f"no distribution for actions {actions!r}")
