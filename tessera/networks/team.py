"""A network for several agents: each acts on what it sees itself, and is valued by what all of them see."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tessera.envs.base import Spec
from tessera.networks.heads import ActorCritic


@dataclass(frozen=True)
class TeamActorCritic:
    """An `ActorCritic` for each agent, by the same calls; what it takes and gives has an axis of agents.

    Observations are [..., agents, *one agent's], heads [..., agents, head_size], values and `first` [..., agents] or,
    where it is the same for all, [...]. Every agent is told which one it is.
    """

    spec: Spec
    widths: tuple[int, ...] | None = None
    activation: str | None = None
    core: str = "none"
    core_width: int | None = None
    separate: bool = False
    """Whether every agent has params of its own; else all have the same."""
    central: bool = True
    """Whether values are of what all agents see together; else of what the agent sees itself."""
    own: tuple[int, ...] | None = None
    """Agents that it is for, who have params of their own; None: all. Observations are of all of them either way."""

    @property
    def agents(self) -> tuple[int, ...]:
        """Agents that it acts for and values."""
        return tuple(range(self.spec.agents)) if self.own is None else self.own

    @property
    def _one(self) -> ActorCritic:
        """The network of one agent; its policy and its value read vectors, each of its own length."""
        spec = replace(self.spec, observation_shape=(1,), observation_dtype="float32", agents=0)
        return ActorCritic(spec, self.widths, "mlp", False, self.activation, self.core, self.core_width)

    def _inputs(self, observation: jax.Array) -> tuple[jax.Array, jax.Array]:
        """What each agent's policy reads, and what its value reads, [..., agents, k] each."""
        shape = self.spec.observation_shape
        batch = observation.shape[: observation.ndim - len(shape)]
        scale = 1.0 / 255.0 if observation.dtype == jnp.uint8 else 1.0
        own = observation.reshape(*batch, self.spec.agents, -1) * scale
        names = jnp.broadcast_to(jnp.eye(self.spec.agents, dtype=own.dtype), (*batch, *(self.spec.agents,) * 2))
        everyone = own.reshape(*batch, 1, -1)
        seen = jnp.broadcast_to(everyone, (*batch, self.spec.agents, everyone.shape[-1])) if self.central else own
        policy, value = jnp.concatenate([own, names], -1), jnp.concatenate([seen, names], -1)
        if self.own is None:
            return policy, value
        mine = np.asarray(self.own)
        return policy[..., mine, :], value[..., mine, :]

    def empty(self) -> Any:
        """What is remembered of nothing, for one environment."""
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (len(self.agents), *x.shape)), self._one.empty())

    def init(self, key: jax.Array, observation: jax.Array, carry: Any = (), first: Any = None) -> Any:
        """Make the params; with `separate`, those of all agents on a leading axis."""
        one, arguments = self._one, (self._inputs(observation), carry, self._each(first))
        if not self.separate:
            return one.init(key, *arguments)
        keys = jax.random.split(key, self.spec.agents)[np.asarray(self.agents)]
        # one after the other: many orthogonal matrices at once were seen to block XLA's threads on two cores for good
        mine = [jax.tree.map(partial(_agent, number=k), arguments) for k in range(len(keys))]
        made = [one.init(key, *each) for key, each in zip(keys, mine, strict=True)]
        return jax.tree.map(lambda *xs: jnp.stack(xs), *made)

    def apply(
        self,
        params: Any,
        observation: jax.Array,
        carry: Any = (),
        first: Any = None,
        burn_in: int = 0,
        method: str | None = None,
    ) -> Any:
        """Evaluate as `ActorCritic` does: everything, or with `method` only the "policy" or the "value" of a step."""
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
        """Whether an episode begins, for each agent: for all of them at once."""
        if self.core == "none":
            return None
        return jnp.broadcast_to(first[..., None], (*first.shape, len(self.agents)))


def _axes(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Where the agents lie: before what one agent sees and remembers, and last where there is one flag for each."""
    flags = (None if arguments[2] is None else -1,) if len(arguments) > 2 else ()
    return (-2, -2 if jax.tree.leaves(arguments[1]) else None, *flags)


def _agent(x: jax.Array, number: int) -> jax.Array:
    return x[..., number] if x.dtype == bool else x[..., number, :]


def _axes_out(out: Any, method: str | None) -> Any:
    if method == "value":
        return -1
    carries = -2 if jax.tree.leaves(out[-1]) else None
    return (-2, carries) if method == "policy" else (-2, -1, carries)
