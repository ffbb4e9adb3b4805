"""Fully connected networks, and the choices that all networks share: activation, precision, initialisation."""

from __future__ import annotations

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from tessera.envs.base import PRECISIONS
from tessera.errors import unknown_name

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "elu": nn.elu,
    "gelu": nn.gelu,
    "relu": nn.relu,
    "silu": nn.silu,
    "tanh": nn.tanh,
}

HIDDEN_GAIN = math.sqrt(2.0)


def activation_named(name: str) -> Callable[[jax.Array], jax.Array]:
    """Find an activation function by name."""
    if name not in ACTIVATIONS:
        raise unknown_name("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]


def dtypes(precision: str) -> tuple[jnp.dtype, jnp.dtype]:
    """The dtypes that a network of this precision computes in and keeps its params in."""
    if precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    compute = {"f32": jnp.float32, "bf16": jnp.bfloat16, "f64": jnp.float64}[precision]
    return jnp.dtype(compute), jnp.dtype(jnp.float64 if precision == "f64" else jnp.float32)


def output_dtype(precision: str) -> jnp.dtype:
    """The dtype of the results of a network of this precision: never bfloat16."""
    return dtypes(precision)[1]


def dense(width: int, gain: float | None, precision: str, name: str | None = None, noisy: bool = False) -> nn.Module:
    """Make one linear layer: orthogonal weights of this gain and zero biases; if None, a `SpreadDense`."""
    compute, param = dtypes(precision)
    if noisy:
        return NoisyDense(width, compute, param, name=name)
    if gain is None:
        return SpreadDense(width, compute, param, name=name)
    return nn.Dense(width, kernel_init=nn.initializers.orthogonal(gain), dtype=compute, param_dtype=param, name=name)


def layer_norm(precision: str) -> nn.Module:
    """Make a layer that normalises the last axis (Ba et al., 2016)."""
    compute, param = dtypes(precision)
    return nn.LayerNorm(dtype=compute, param_dtype=param)


class NoisyDense(nn.Module):
    """A linear layer whose weights are learned means and deviations (Fortunato et al., 2018): [..., k] -> [..., width].

    Noise is factorised, one draw for all rows of a call, from the stream "noise"; without that stream there is none.
    """

    width: int
    dtype: jnp.dtype
    param_dtype: jnp.dtype
    deviation: float = 0.5
    """Deviation at the beginning, times the square root of the inputs."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Evaluate the layer."""
        inputs = x.shape[-1]
        constant = nn.initializers.constant(self.deviation / math.sqrt(inputs))
        mean = SpreadDense(self.width, self.dtype, self.param_dtype, name="mean")(x)
        kernel = self.param("kernel_deviation", constant, (inputs, self.width), self.param_dtype).astype(self.dtype)
        bias = self.param("bias_deviation", constant, (self.width,), self.param_dtype).astype(self.dtype)
        if not self.has_rng("noise"):
            return mean
        noise = jax.random.normal(self.make_rng("noise"), (inputs + self.width,), self.dtype)
        noise = jnp.sign(noise) * jnp.sqrt(jnp.abs(noise))
        into, out = noise[:inputs], noise[inputs:]
        return mean + ((x.astype(self.dtype) * into) @ kernel + bias) * out


class SpreadDense(nn.Module):
    """A linear layer whose weights and biases start uniform within 1 / sqrt(inputs): [..., k] -> [..., width].

    For action values. Without biases a network of relus is proportional to the norm of its input. Where later states
    have larger norms (a falling pole), it values them higher, bootstraps from that, and diverges.
    """

    width: int
    dtype: jnp.dtype
    param_dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Evaluate the layer."""
        bound = 1.0 / math.sqrt(x.shape[-1])

        def spread(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
            return jax.random.uniform(key, shape, dtype, -bound, bound)

        kernel = self.param("kernel", spread, (x.shape[-1], self.width), self.param_dtype)
        bias = self.param("bias", spread, (self.width,), self.param_dtype)
        return x.astype(self.dtype) @ kernel.astype(self.dtype) + bias.astype(self.dtype)


class MLP(nn.Module):
    """Linear layers, each followed by the activation: [..., *element] -> [..., widths[-1]].

    uint8 inputs are divided by 255. Without widths it only flattens.
    """

    widths: tuple[int, ...]
    activation: str = "tanh"
    precision: str = "f32"
    gain: float | None = HIDDEN_GAIN
    """Gain of the orthogonal weights; None: uniform weights and biases."""
    axes: int = 1
    """Number of axes of one observation, which are flattened. Axes before them are a batch."""
    noisy: bool = False
    """Layers with noise on their weights."""
    normalised: bool = False
    """Normalise each layer before its activation (layer normalisation)."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Evaluate the network."""
        activation = activation_named(self.activation)
        batch = x.shape[: x.ndim - self.axes]
        scale = 1.0 / 255.0 if x.dtype == jnp.uint8 else 1.0
        x = x.reshape(*batch, -1).astype(dtypes(self.precision)[0])
        x = x * scale if scale != 1.0 else x
        for width in self.widths:
            x = dense(width, self.gain, self.precision, noisy=self.noisy)(x)
            x = activation(layer_norm(self.precision)(x) if self.normalised else x)
        return x
