"""A network for several agents: each acts on its own observation, and is valued by the observations of all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tessera.envs.base import Spec
from tessera.networks.heads import ActorCritic, TwoInputs


@dataclass(frozen=True)
class TeamActorCritic:
    """An `ActorCritic` for each agent, with the same methods; inputs and outputs have an axis of agents.

    Observations are [..., agents, *one agent's], heads [..., agents, head_size], values [..., agents]. `first` is
    [...], as episodes begin for all agents at once. Every agent's inputs contain its number.
    """

    spec: Spec
    widths: tuple[int, ...] | None = None
    activation: str | None = None
    core: str = "none"
    core_width: int | None = None
    separate: bool = False
    """Whether every agent has params of its own; else all have the same."""
    central: bool = True
    """Whether values read the observations of all agents; else each agent's own."""
    own: tuple[int, ...] | None = None
    """Agents that it has params for; None: all. Observations are always those of all agents."""

    @property
    def agents(self) -> tuple[int, ...]:
        """Agents that it computes actions and values for."""
        return tuple(range(self.spec.agents)) if self.own is None else self.own

    @property
    def _one(self) -> ActorCritic:
        """The network of one agent; policy and value read vectors of different lengths."""
        spec = replace(self.spec, observation_shape=(1,), observation_dtype="float32", agents=0)
        return ActorCritic(spec, self.widths, "mlp", False, self.activation, self.core, self.core_width)

    def _inputs(self, observation: jax.Array) -> TwoInputs:
        """Inputs of each agent's policy, and of its value, [..., agents, k] each."""
        shape = self.spec.array.shape
        batch = observation.shape[: observation.ndim - len(shape)]
        scale = 1.0 / 255.0 if observation.dtype == jnp.uint8 else 1.0
        each = observation.reshape(*batch, self.spec.agents, -1) * scale
        numbers = jnp.broadcast_to(jnp.eye(self.spec.agents, dtype=each.dtype), (*batch, *(self.spec.agents,) * 2))
        joined = each.reshape(*batch, 1, -1)
        central = jnp.broadcast_to(joined, (*batch, self.spec.agents, joined.shape[-1])) if self.central else each
        policy, value = jnp.concatenate([each, numbers], -1), jnp.concatenate([central, numbers], -1)
        if self.own is None:
            return TwoInputs(policy, value)
        own = np.asarray(self.own)
        return TwoInputs(policy[..., own, :], value[..., own, :])

    def empty(self) -> Any:
        """State of the cores when an episode begins, for one environment."""
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (len(self.agents), *x.shape)), self._one.empty())

    def init(self, key: jax.Array, observation: jax.Array, carry: Any = (), first: Any = None) -> Any:
        """Make the params; with `separate`, those of all agents on a leading axis."""
        one, arguments = self._one, (self._inputs(observation), carry, self._each(first))
        if not self.separate:
            return one.init(key, *arguments)
        keys = jax.random.split(key, self.spec.agents)[np.asarray(self.agents)]
        # one after the other: making many orthogonal matrices at once has blocked XLA's threads on two cores forever
        each = [jax.tree.map(partial(_agent, number=k), arguments) for k in range(len(keys))]
        params = [one.init(key, *own) for key, own in zip(keys, each, strict=True)]
        return jax.tree.map(lambda *xs: jnp.stack(xs), *params)

    def apply(
        self,
        params: Any,
        observation: jax.Array,
        carry: Any = (),
        first: Any = None,
        burn_in: int = 0,
        method: str | None = None,
    ) -> Any:
        """Evaluate as `ActorCritic` does: all outputs, or with `method` only the "policy" or the "value" of a step."""
        arguments: tuple[Any, ...] = (self._inputs(observation), carry)
        if method != "value":
            arguments = (*arguments, self._each(first))
        last = () if method else (burn_in,)

        def call(params: Any, *arguments: Any) -> Any:
            return self._one.apply(params, *arguments, *last, method=method)

        if not self.separate:
            return call(params, *arguments)
        out = jax.eval_shape(
            call, jax.tree.map(lambda x: x[0], params), *jax.tree.map(partial(_agent, number=0), arguments)
        )
        return jax.vmap(call, (0, *_axes(arguments)), _axes_out(out, method))(params, *arguments)

    def _each(self, first: Any) -> Any:
        """Whether an episode begins, spread over the agents; None without a core."""
        if self.core == "none":
            return None
        return jnp.broadcast_to(first[..., None], (*first.shape, len(self.agents)))


def _axes(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The axis of agents in each argument: before one agent's inputs and carry, and last in flags."""
    flags = (None if arguments[2] is None else -1,) if len(arguments) > 2 else ()
    return (-2, -2 if jax.tree.leaves(arguments[1]) else None, *flags)


def _agent(x: jax.Array, number: int) -> jax.Array:
    return x[..., number] if x.dtype == bool else x[..., number, :]


def _axes_out(out: Any, method: str | None) -> Any:
    if method == "value":
        return -1
    carries = -2 if jax.tree.leaves(out[-1]) else None
    return (-2, carries) if method == "policy" else (-2, -1, carries)
