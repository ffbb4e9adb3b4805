"""Networks of a user's own: Flax modules, of linen or nnx, as objects or by name.

A *torso* turns observations [..., *shape] into features [..., k]. A *core* is one of Flax's recurrent cells
(`nn.RNNCellBase`). A *network* is a whole one: for action values it gives [..., n], and for an actor-critic the pair of
head output [..., head_size(actions)] and value [...].
"""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from tessera.envs.base import Spec
from tessera.errors import TesseraError
from tessera.support.named_objects import import_named, is_foreign


def is_own(given: Any) -> bool:
    """Whether a network is the user's own, and not one of ours by its name."""
    return given is not None and (not isinstance(given, str) or is_foreign(given))


@functools.cache
def _named(name: str) -> Any:
    return import_named(name)


def as_module(given: Any, what: str) -> nn.Module:
    """A linen module that belongs to no other, from a module, a class of them, a partial of that, or its name."""
    thing = _named(given) if is_foreign(given) else given
    if isinstance(thing, nn.Module):
        return thing.clone(parent=None, name=None)
    cls, keywords = (thing.func, thing.keywords) if isinstance(thing, functools.partial) else (thing, {})
    try:
        if isinstance(cls, type) and issubclass(cls, nn.Module):
            return cls(**keywords, parent=None)
        if isinstance(cls, type):
            from flax import nnx
            from flax.core import FrozenDict

            if issubclass(cls, nnx.Module):
                return nnx.bridge.ToLinen(cls, kwargs=FrozenDict(keywords), parent=None)
    except TypeError as error:
        raise TesseraError(
            f"--{what} {name_in_words(given)} cannot be made ({error}): give the arguments that it takes"
        ) from error
    raise TesseraError(
        f"--{what} {name_in_words(given)} is no Flax module that can be made anew: give a module of flax.linen, or a "
        "class of flax.nnx, not an object of it"
    )


def name_in_words(given: Any) -> str:
    """What a message calls a network."""
    if isinstance(given, str):
        return given
    cls = given.func if isinstance(given, functools.partial) else given
    return getattr(cls, "__name__", type(cls).__name__)


def check_torso(spec: Spec, given: Any) -> None:
    """Refuse a torso that does not turn observations into features."""
    shape = shape_of(as_module(given, "torso"), spec, f"--torso {name_in_words(given)}")
    leaves = jax.tree.leaves(shape)
    if len(leaves) != 1 or leaves[0].ndim != 3 or leaves[0].shape[:2] != (2, 3):
        found = [tuple(leaf.shape) for leaf in leaves]
        raise TesseraError(
            f"--torso {name_in_words(given)} turns observations with leading axes (2, 3) into {found}, and features "
            "must be (2, 3, k): keep all leading axes, and flatten the rest"
        )


def shape_of(module: nn.Module, spec: Spec, words: str) -> Any:
    """What a module makes of observations with leading axes (2, 3); refuse one that fails."""

    def call(key: jax.Array) -> Any:
        observation = spec.zeros(jnp, 2, 3)
        return module.apply(module.init(key, observation), observation)

    try:
        return jax.eval_shape(call, jax.random.key(0))
    except Exception as error:
        described = ", ".join(f"{path} {x.dtype}{list(x.shape)}".strip() for path, x in spec.parts.items())
        first = str(error).strip().partition("\n")[0][:200]
        raise TesseraError(
            f"{words} cannot read these observations ({described}, after any leading axes), {type(error).__name__}: "
            f"{first}: {_advice(spec)}, or leave {words.split()[0]} out"
        ) from error


def _advice(spec: Spec) -> str:
    """What to do about a network that cannot read observations."""
    form = spec.observation
    if not spec.is_tree:
        return "have it read this shape"
    key = next(iter(form)) if isinstance(form, dict) else 0
    return f"they come as a {type(form).__name__} of arrays, so have it read each, as in observation[{key!r}]"


class OwnTorso(nn.Module):
    """A user's torso, with params of its own in each place where it is used."""

    given: Any

    def setup(self) -> None:
        """Make the torso."""
        self.own = as_module(self.given, "torso")

    def __call__(self, observation: Any) -> jax.Array:
        """Turn observations into features, [..., k]."""
        return self.own(observation)


class OwnCore(nn.Module):
    """One of Flax's recurrent cells as a core, reset where episodes begin; see `recurrent.Core`."""

    cell: nn.Module

    def setup(self) -> None:
        """Make the cell."""
        self.own = as_module(self.cell, "core")

    def __call__(self, features: jax.Array, carry: Any, first: jax.Array) -> tuple[jax.Array, Any]:
        """Take one step: features [..., k], carry, first [...] -> output [..., width], carry."""
        carry, out = self.own(_reset(self.own, carry, first), features)
        return out, carry

    def unroll(self, features: jax.Array, carry: Any, first: jax.Array, burn_in: int = 0) -> tuple[jax.Array, Any]:
        """Take a sequence of steps, [T, ..., k], from `carry` before the first: outputs and carries, [T, ...]."""

        def step(cell: Any, carry: Any, row: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[Any, Any]:
            x, begins, t = row
            if burn_in:
                carry = jax.tree.map(lambda c: jnp.where(t == burn_in, jax.lax.stop_gradient(c), c), carry)
            carry, out = cell(_reset(cell, carry, begins), x)
            return carry, (out, carry)

        scan = nn.scan(step, variable_broadcast="params", split_rngs={"params": False})
        return scan(self.own, carry, (features, first, jnp.arange(features.shape[0])))[1]


def _reset(cell: Any, carry: Any, first: jax.Array) -> Any:
    """The state of a cell, that of a beginning where episodes begin."""
    empty = empty_state(cell)
    return jax.tree.map(lambda c, e: jnp.where(first[(...,) + (None,) * (c.ndim - first.ndim)], e, c), carry, empty)


def empty_state(cell: Any) -> Any:
    """The state of a cell when an episode begins, for one environment."""
    return cell.initialize_carry(jax.random.key(0), (1,))


def own_core(given: Any) -> nn.Module:
    """The user's cell; refuse what is none."""
    cell = as_module(given, "core")
    if not isinstance(cell, nn.RNNCellBase):
        raise TesseraError(
            f"--core {name_in_words(given)} is no recurrent cell: give one of flax.linen, such as "
            "OptimizedLSTMCell(64), or a class derived from RNNCellBase"
        )
    return cell


class OwnActorCritic(nn.Module):
    """A user's whole network with the methods of `heads.ActorCritic`."""

    spec: Spec
    given: Any

    def setup(self) -> None:
        """Make the network."""
        self.own = as_module(self.given, "network")

    def empty(self) -> tuple[()]:
        """It has no core."""
        return ()

    def __call__(self, observation: Any, carry: Any = (), first: Any = None, burn_in: int = 0) -> tuple[Any, Any, Any]:
        """Compute the head output, [..., head_size], and the value, [...]."""
        del first, burn_in
        head, value = self.own(observation)
        return head, value, carry

    def policy(self, observation: Any, carry: Any = (), first: Any = None) -> tuple[Any, Any]:
        """Compute only the head output."""
        del first
        return self.own(observation)[0], carry

    def value(self, observation: Any, carry: Any = ()) -> Any:
        """Compute only the value."""
        del carry
        return self.own(observation)[1]


def check_network(spec: Spec, given: Any, wanted: tuple[tuple[int, ...], ...], described: str) -> None:
    """Refuse a whole network whose outputs, for leading axes (2, 3), have other shapes than `wanted`."""
    words = f"--network {name_in_words(given)}"
    made = shape_of(as_module(given, "network"), spec, words)
    found = [tuple(leaf.shape) for leaf in jax.tree.leaves(made)]
    if found != [(2, 3, *shape) for shape in wanted]:
        raise TesseraError(
            f"{words} turns observations with leading axes (2, 3) into {found}, and must make {described}: "
            f"{[(2, 3, *shape) for shape in wanted]}"
        )
