"""Recurrent cores, between a network's torso and its heads."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from tessera.errors import unknown_name
from tessera.networks.mlp import dense, dtypes, output_dtype

CORES = ("none", "lstm", "gru")

Carry = tuple[jax.Array, ...]
"""State of a core: (hidden, cell) of an LSTM, (hidden,) of a GRU, () without a core."""

_GATES = {"lstm": 4, "gru": 3}


def empty_carry(kind: str, width: int, precision: str, batch: tuple[int, ...] = ()) -> Carry:
    """State of a core when an episode begins: zeros."""
    if kind not in CORES:
        raise unknown_name("core", kind, CORES)
    zeros = jnp.zeros((*batch, width), output_dtype(precision))
    return {"none": (), "lstm": (zeros, zeros), "gru": (zeros,)}[kind]


class Core(nn.Module):
    """An LSTM (Hochreiter & Schmidhuber, 1997) or a GRU (Cho et al., 2014), reset where episodes begin."""

    kind: str
    width: int
    precision: str = "f32"

    def setup(self) -> None:
        """Make the layers: all gates of a step are one matrix product with its input and one with the hidden state."""
        self.inputs = dense(_GATES[self.kind] * self.width, 1.0, self.precision)
        self.recurrent = _Recurrent(self.width, _GATES[self.kind], self.precision)

    def __call__(self, features: jax.Array, carry: Carry, first: jax.Array) -> tuple[jax.Array, Carry]:
        """Take one step: features [..., k], carry of [..., width] each, first [...] -> hidden [..., width], carry."""
        carry = self._step(self.inputs(features), self.recurrent.value(), carry, first)
        return carry[0], carry

    def unroll(self, features: jax.Array, carry: Carry, first: jax.Array, burn_in: int = 0) -> tuple[jax.Array, Carry]:
        """Take a sequence of steps, [T, ..., k], from `carry` before the first: hidden and carry after each, [T, ...].

        No gradient flows through the state after the first `burn_in` steps.
        """
        weights = self.recurrent.value()

        def step(carry: Carry, row: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[Carry, Carry]:
            gates, begins, t = row
            if burn_in:
                carry = tuple(jnp.where(t == burn_in, jax.lax.stop_gradient(x), x) for x in carry)
            carry = self._step(gates, weights, carry, begins)
            return carry, carry

        times = jnp.arange(features.shape[0])
        carries = jax.lax.scan(step, carry, (self.inputs(features), first, times))[1]
        return carries[0], carries

    def _step(self, gates: jax.Array, weights: Any, carry: Carry, first: jax.Array) -> Carry:
        kernel, bias = weights
        out = carry[0].dtype
        hidden, *cell = (jnp.where(first[..., None], 0, x) for x in carry)
        before = hidden.astype(kernel.dtype) @ kernel
        if self.kind == "lstm":
            i, f, g, o = jnp.split(gates + before + bias, 4, axis=-1)
            kept = nn.sigmoid(f) * cell[0] + nn.sigmoid(i) * jnp.tanh(g)
            return (nn.sigmoid(o) * jnp.tanh(kept)).astype(out), kept.astype(out)
        reset, update, new = jnp.split(gates, 3, axis=-1)
        reset_h, update_h, new_h = jnp.split(before + bias, 3, axis=-1)
        update = nn.sigmoid(update + update_h)
        new = jnp.tanh(new + nn.sigmoid(reset + reset_h) * new_h)
        return (((1 - update) * new + update * hidden).astype(out),)


class _Recurrent(nn.Module):
    """Weights from the hidden state to the gates: one orthogonal block for each, and a bias."""

    width: int
    gates: int
    precision: str

    @nn.compact
    def value(self) -> tuple[jax.Array, jax.Array]:
        """Kernel [width, gates * width] and bias [gates * width]; an LSTM's forget gate starts open."""
        compute, param = dtypes(self.precision)

        def blocks(key: jax.Array, shape: tuple[int, int], dtype: Any) -> jax.Array:
            keys = jax.random.split(key, self.gates)
            return jnp.concatenate(
                [nn.initializers.orthogonal()(k, (shape[0], self.width), dtype) for k in keys], axis=-1
            )

        def biases(key: jax.Array, shape: tuple[int], dtype: Any) -> jax.Array:
            del key
            gate = jnp.arange(shape[0]) // self.width
            return jnp.where((gate == 1) & (self.gates == _GATES["lstm"]), 1, 0).astype(dtype)

        kernel = self.param("kernel", blocks, (self.width, self.gates * self.width), param)
        bias = self.param("bias", biases, (self.gates * self.width,), param)
        return kernel.astype(compute), bias.astype(compute)
