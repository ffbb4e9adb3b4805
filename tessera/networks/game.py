"""The network of a search in games: how good each move looks, and how good the position is for who moves."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from tessera.networks.conv import Conv
from tessera.networks.mlp import HIDDEN_GAIN, MLP, dense, layer_norm, output_dtype


class GameNetwork(nn.Module):
    """A residual tower over a board [..., H, W, C] with two heads (Silver et al., 2017); over a vector a plain network.

    Layers are normalised one position at a time, since statistics over a batch would need a place in the state.
    """

    actions: int
    channels: int = 64
    blocks: int = 3
    hidden: int = 64
    """Width of the layer before the value."""
    head_planes: int = 2
    """Channels that each head reads the board through."""
    board: bool = True
    precision: str = "f32"

    @nn.compact
    def __call__(self, observation: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Logits of moves [..., actions], and the value from -1 to 1 [...]."""
        if not self.board:
            body = MLP((self.channels,) * self.blocks, "relu", self.precision)(observation)
            return self._heads(body, body)
        x = observation.reshape(-1, *observation.shape[-3:])
        x = nn.relu(self._normalised(self._convolved(x, self.channels, 3)))
        for _ in range(self.blocks):
            y = nn.relu(self._normalised(self._convolved(x, self.channels, 3)))
            x = nn.relu(x + self._normalised(self._convolved(y, self.channels, 3)))
        policy, value = (  # of so few channels nothing would be left if each cell were normalised
            nn.relu(self._normalised(self._convolved(x, self.head_planes, 1).reshape(*observation.shape[:-3], -1)))
            for _ in range(2)
        )
        return self._heads(policy, value)

    def _heads(self, policy: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = output_dtype(self.precision)
        logits = dense(self.actions, 0.01, self.precision)(policy)
        hidden = nn.relu(dense(self.hidden, HIDDEN_GAIN, self.precision)(value))
        estimate = jnp.tanh(dense(1, 0.01, self.precision)(hidden))[..., 0]
        return logits.astype(out), estimate.astype(out)

    def _convolved(self, x: jax.Array, channels: int, kernel: int) -> jax.Array:
        return Conv(channels, kernel, 1, self.precision, padding=kernel // 2)(x)

    def _normalised(self, x: jax.Array) -> jax.Array:
        return layer_norm(self.precision)(x)
