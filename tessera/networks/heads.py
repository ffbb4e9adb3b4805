"""Whole networks: torsos with heads. All take observations [..., *observation_shape]."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from tessera.envs.base import Box, Discrete, Spec
from tessera.errors import TesseraError
from tessera.maths.distributions import head_size
from tessera.maths.losses import dueling
from tessera.networks.mlp import MLP, dense, output_dtype
from tessera.networks.own import OwnCore, empty_state, is_own, own_core
from tessera.networks.recurrent import Carry, Core, empty_carry
from tessera.networks.torsos import torso, torso_name, torso_widths


class TwoInputs(NamedTuple):
    """Different inputs of policy and value."""

    policy: jax.Array
    value: jax.Array


class ActorCritic(nn.Module):
    """A distribution over actions and a value, with or without recurrent cores.

    `module.apply(params, observation, method="policy")` computes only the policy's head, and "value" only the value's.
    Without a core, `carry` is () and `first` is not read. Where policy and value have different inputs, `observation`
    is `TwoInputs`.
    """

    spec: Spec
    widths: tuple[int, ...] | None = None
    """Widths of the fully connected layers; None: the torso's usual ones."""
    torso: Any = "auto"
    """"auto", one of `TORSOS`, or a user's own."""
    shared: bool | None = None
    """Whether policy and value share one torso and core; None: for images only."""
    activation: str | None = None
    """None: tanh for mlp, relu for images."""
    core: Any = "none"
    """Recurrent core behind a torso: none, lstm, gru, or a user's own cell."""
    core_width: int | None = None
    """Numbers that a core remembers; None: 64 behind mlp, 256 behind images."""

    def setup(self) -> None:
        """Make the layers."""
        reads = (self.spec, self.torso, self.widths, self.activation)
        self.policy_torso = torso(*reads)
        self.value_torso = None if self._shared else torso(*reads)
        remembers = (self.core, self.core_width, self.spec, self.torso)
        self.policy_core = make_core(*remembers)
        self.value_core = None if self._shared else make_core(*remembers)
        actions = self.spec.actions
        size = actions.size if isinstance(actions, Box) else head_size(actions)
        self.policy_head = dense(size, 0.01, self.spec.precision)
        self.value_head = dense(1, 1.0, self.spec.precision)
        if isinstance(actions, Box):
            zeros = nn.initializers.zeros_init()
            self.log_std = self.param("log_std", zeros, (size,), output_dtype(self.spec.precision))

    @property
    def _shared(self) -> bool:
        return torso_name(self.spec, self.torso) != "mlp" if self.shared is None else self.shared

    @property
    def _towers(self) -> list[tuple[Any, Any]]:
        """Torso and core of the policy, and those of the value unless they are shared."""
        both = [(self.policy_torso, self.policy_core), (self.value_torso, self.value_core)]
        return [tower for tower in both if tower[0] is not None]

    def empty(self) -> tuple[Carry, ...]:
        """State of the cores when an episode begins, for one environment: one entry for each core."""
        if self.core == "none":
            return ()
        one = empty_core(self.core, self.core_width, self.spec, self.torso)
        return (one,) * (1 if self._shared else 2)

    def _policy(self, features: jax.Array) -> jax.Array:
        out = self.policy_head(features).astype(output_dtype(self.spec.precision))
        if not isinstance(self.spec.actions, Box):
            return out
        return jnp.concatenate([out, jnp.broadcast_to(self.log_std, out.shape)], axis=-1)

    def _value(self, features: jax.Array) -> jax.Array:
        return self.value_head(features)[..., 0].astype(output_dtype(self.spec.precision))

    def __call__(
        self, observation: Any, carry: tuple[Carry, ...] = (), first: Any = None, burn_in: int = 0
    ) -> tuple[jax.Array, jax.Array, tuple[Carry, ...]]:
        """Compute the head output for `distributions.for_actions`, [..., head_size], the value, [...], and carries.

        With cores the leading axis is time: observation [T, ...], `carry` before the first step, `first` [T, ...] true
        where an episode begins, and the carry after each step, [T, ...], as a result.
        """
        features, after = [], []
        for k, (reader, core) in enumerate(self._towers):
            hidden = reader(_input(observation, k))
            if core is not None:
                hidden, carries = core.unroll(hidden, carry[k], first, burn_in)
                after.append(carries)
            features.append(hidden)
        return self._policy(features[0]), self._value(features[-1]), tuple(after)

    def policy(
        self, observation: Any, carry: tuple[Carry, ...] = (), first: Any = None
    ) -> tuple[jax.Array, tuple[Carry, ...]]:
        """Compute only the head output of one step, [..., head_size], and the carry after it."""
        if self.policy_core is None:
            return self._policy(self.policy_torso(_input(observation, 0))), carry
        both = [core(reader(_input(observation, k)), carry[k], first) for k, (reader, core) in enumerate(self._towers)]
        return self._policy(both[0][0]), tuple(after for _, after in both)

    def value(self, observation: Any, carry: tuple[Carry, ...] = ()) -> jax.Array:
        """Compute only the value, [...], of an observation within an episode."""
        reader, core = self._towers[-1]
        features = reader(_input(observation, -1))
        if core is not None:
            features, _ = core(features, carry[-1], jnp.zeros(features.shape[:-1], bool))
        return self._value(features)


def _input(observation: Any, tower: int) -> Any:
    return observation[tower] if isinstance(observation, TwoInputs) else observation


def make_core(core: Any, width: int | None, spec: Spec, torso: Any) -> Any:
    """The core of a network, of the usual width if none is given; None without one."""
    if is_own(core):
        return OwnCore(own_core(core))
    return None if core == "none" else Core(core, width or usual_core_width(spec, torso), spec.precision)


def empty_core(core: Any, width: int | None, spec: Spec, torso: Any) -> Carry:
    """State of a core when an episode begins, for one environment."""
    if is_own(core):
        return empty_state(own_core(core))
    return empty_carry(core, width or usual_core_width(spec, torso), spec.precision)


def usual_core_width(spec: Spec, torso: Any) -> int:
    """Numbers that a core remembers where the user gives no number."""
    return 64 if torso_name(spec, torso) == "mlp" else 256


class QNetwork(nn.Module):
    """The value of each of a discrete set of actions, or several numbers for each that describe its distribution."""

    spec: Spec
    widths: tuple[int, ...] | None = None
    """Widths of the fully connected layers; None: the torso's usual ones."""
    torso: Any = "auto"
    """"auto", one of `TORSOS`, or a user's own."""
    dueling: bool = False
    """Separate heads for the value and the advantages, each with its own last hidden layer (Wang et al., 2016)."""
    activation: str = "relu"
    atoms: int | None = None
    """Numbers for each action; None: its value."""
    noisy: bool = False
    """Noise on the weights of the last hidden layer and of the heads (Fortunato et al., 2018)."""
    normalised: bool = False
    """Normalise layers before their activations."""

    @nn.compact
    def __call__(self, observation: jax.Array) -> jax.Array:
        """Compute action values [..., n], or [..., n, atoms]."""
        spec = self.spec
        if not isinstance(spec.actions, Discrete):
            raise TesseraError(
                f"action values need one discrete choice, but this environment's actions are {spec.actions}: "
                "choose an algorithm with a policy of its own, such as PPO"
            )
        widths = torso_widths(spec, self.torso, self.widths)
        below, last = (widths[:-1], widths[-1:]) if self.dueling or self.noisy else (widths, ())
        features = torso(spec, self.torso, below, self.activation, None, self.normalised)(observation)

        def head(choices: int, name: str) -> jax.Array:
            hidden = MLP(last, self.activation, spec.precision, gain=None, noisy=self.noisy, name=f"{name}_hidden")
            out = dense(choices * (self.atoms or 1), None, spec.precision, name, self.noisy)(hidden(features))
            return out.astype(output_dtype(spec.precision)).reshape(*out.shape[:-1], choices, self.atoms or 1)

        if self.dueling:
            values = dueling(head(1, "value")[..., 0, :], head(spec.actions.n, "advantage"), axis=-2)
        else:
            values = head(spec.actions.n, "q")
        return values[..., 0] if self.atoms is None else values


class RecurrentQNetwork(nn.Module):
    """Action values that depend on what was observed before: a torso, a core, and the heads of a `QNetwork` behind it.

    With `dueling` each head has a hidden layer of the core's width.
    """

    spec: Spec
    widths: tuple[int, ...] | None = None
    """Widths of the fully connected layers before the core; None: the torso's usual ones."""
    torso: Any = "auto"
    """"auto", one of `TORSOS`, or a user's own."""
    dueling: bool = False
    """Separate heads for the value and the advantages (Wang et al., 2016)."""
    core: Any = "lstm"
    """Recurrent core: lstm, gru, or a user's own cell."""
    core_width: int | None = None
    """Numbers that the core remembers; None: 64 behind mlp, 256 behind images."""
    activation: str = "relu"

    def setup(self) -> None:
        """Make the layers; what the core remembers is what the heads observe."""
        remembers, precision = (self.core, self.core_width, self.spec, self.torso), self.spec.precision
        width = jax.tree.leaves(empty_core(*remembers))[0].shape[-1]
        self.reader = torso(self.spec, self.torso, self.widths, self.activation, None)
        self.memory = make_core(*remembers)
        remembered = replace(self.spec, observation_shape=(width,), observation_dtype=str(output_dtype(precision)))
        hidden = (width,) if self.dueling else ()
        self.heads = QNetwork(remembered, hidden, "mlp", self.dueling, self.activation)

    def empty(self) -> Carry:
        """State of the core when an episode begins, for one environment."""
        return empty_core(self.core, self.core_width, self.spec, self.torso)

    def __call__(
        self, observation: jax.Array, carry: Carry, first: jax.Array, burn_in: int = 0
    ) -> tuple[jax.Array, Carry]:
        """Compute a sequence's action values, [T, ..., n], and the carry after each step, [T, ...].

        Observations are [T, ...], `carry` is that before the first, and `first` [T, ...] is true where episodes begin.
        """
        hidden, carries = self.memory.unroll(self.reader(observation), carry, first, burn_in)
        return self.heads(hidden), carries

    def step(self, observation: jax.Array, carry: Carry, first: jax.Array) -> tuple[jax.Array, Carry]:
        """Compute the action values of one step, [..., n], and the carry after it."""
        hidden, carry = self.memory(self.reader(observation), carry, first)
        return self.heads(hidden), carry
