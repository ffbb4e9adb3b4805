"""Whole networks: a torso and what is read off it. All take observations [..., *observation_shape]."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from tessera.envs.base import Box, Discrete, Spec
from tessera.errors import TesseraError
from tessera.maths.distributions import head_size
from tessera.maths.losses import dueling
from tessera.networks.mlp import MLP, dense, output_dtype
from tessera.networks.recurrent import Carry, Core, empty_carry
from tessera.networks.torsos import torso, torso_name, torso_widths


class ActorCritic(nn.Module):
    """What to do, and how good things are; with a core, given what is remembered.

    `policy` and `value` can be had apart, with `module.apply(params, observation, method="policy")`, and neither
    computes the other. Without a core, `carry` is () and `first` is not read.
    """

    spec: Spec
    widths: tuple[int, ...] | None = None
    """Of the fully connected layers; None: those usual for the torso."""
    torso: str = "auto"
    """"auto", or one of `TORSOS`."""
    shared: bool | None = None
    """Whether both read the same torso; None: they do for images and behind a core, and have one each otherwise."""
    activation: str | None = None
    """None: tanh for mlp, relu for images."""
    core: str = "none"
    """Memory behind the torso: none, lstm or gru."""
    core_width: int | None = None
    """Numbers that it remembers; None: 64 behind mlp, 256 behind images."""

    def setup(self) -> None:
        """Make the layers."""
        chosen = torso_name(self.spec, self.torso)
        shared = chosen != "mlp" or self.core != "none" if self.shared is None else self.shared
        self.policy_torso = torso(self.spec, chosen, self.widths, self.activation)
        self.value_torso = None if shared else torso(self.spec, chosen, self.widths, self.activation)
        self.remember = None if self.core == "none" else Core(self.core, self._core_width, self.spec.precision)
        if self.remember is not None and self.value_torso is not None:
            raise TesseraError("a network with a core has one torso for policy and value: leave `shared` out")
        actions = self.spec.actions
        size = actions.size if isinstance(actions, Box) else head_size(actions)
        self.policy_head = dense(size, 0.01, self.spec.precision)
        self.value_head = dense(1, 1.0, self.spec.precision)
        if isinstance(actions, Box):
            zeros = nn.initializers.zeros_init()
            self.log_std = self.param("log_std", zeros, (size,), output_dtype(self.spec.precision))

    @property
    def _core_width(self) -> int:
        return self.core_width or (64 if torso_name(self.spec, self.torso) == "mlp" else 256)

    def empty(self) -> Carry:
        """What is remembered of nothing, for one environment."""
        return empty_carry(self.core, self._core_width, self.spec.precision)

    def _policy(self, features: jax.Array) -> jax.Array:
        out = self.policy_head(features).astype(output_dtype(self.spec.precision))
        if not isinstance(self.spec.actions, Box):
            return out
        return jnp.concatenate([out, jnp.broadcast_to(self.log_std, out.shape)], axis=-1)

    def _value(self, features: jax.Array) -> jax.Array:
        return self.value_head(features)[..., 0].astype(output_dtype(self.spec.precision))

    def __call__(
        self, observation: jax.Array, carry: Carry = (), first: Any = None, burn_in: int = 0
    ) -> tuple[jax.Array, jax.Array, Carry]:
        """Compute the head output for `distributions.for_actions`, [..., head_size], the value, [...], and carries.

        With a core the leading axis is time: observation [T, ...], carry before the first step, first [T, ...] true
        where an episode begins; the carry after each step is given back, [T, ...].
        """
        features = self.policy_torso(observation)
        if self.remember is not None:
            features, carry = self.remember.unroll(features, carry, first, burn_in)
        apart = features if self.value_torso is None else self.value_torso(observation)
        return self._policy(features), self._value(apart), carry

    def policy(self, observation: jax.Array, carry: Carry = (), first: Any = None) -> tuple[jax.Array, Carry]:
        """Compute only the head output of one step, [..., head_size], and what is remembered after it."""
        features = self.policy_torso(observation)
        if self.remember is not None:
            features, carry = self.remember(features, carry, first)
        return self._policy(features), carry

    def value(self, observation: jax.Array, carry: Carry = ()) -> jax.Array:
        """Compute only the value, [...], of an observation within an episode."""
        features = (self.value_torso or self.policy_torso)(observation)
        if self.remember is not None:
            features, _ = self.remember(features, carry, jnp.zeros(features.shape[:-1], bool))
        return self._value(features)


class QNetwork(nn.Module):
    """The value of each of a discrete set of actions."""

    spec: Spec
    widths: tuple[int, ...] | None = None
    """Of the fully connected layers; None: those usual for the torso."""
    torso: str = "auto"
    """"auto", or one of `TORSOS`."""
    dueling: bool = False
    """Compute a value and advantages apart, each with a last hidden layer of its own (Wang et al., 2016)."""
    activation: str = "relu"

    @nn.compact
    def __call__(self, observation: jax.Array) -> jax.Array:
        """Compute action values [..., n]."""
        spec = self.spec
        if not isinstance(spec.actions, Discrete):
            raise TesseraError(
                f"action values need one discrete choice, but this environment's actions are {spec.actions}: "
                "choose an algorithm with a policy of its own, such as PPO"
            )
        widths = torso_widths(spec, self.torso, self.widths)
        below, last = (widths[:-1], widths[-1:]) if self.dueling else (widths, ())
        features = torso(spec, self.torso, below, self.activation, gain=None)(observation)

        def head(size: int, name: str) -> jax.Array:
            hidden = MLP(last, self.activation, spec.precision, gain=None, name=f"{name}_hidden")(features)
            out = dense(size, None, spec.precision, name=name)(hidden)
            return out.astype(output_dtype(spec.precision))

        if self.dueling:
            return dueling(head(1, "value")[..., 0], head(spec.actions.n, "advantage"))
        return head(spec.actions.n, "q")
