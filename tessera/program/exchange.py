"""What replicas with params of their own give each other: whole gradients, flat ranges of params, joined updates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tessera.algorithms.contract import Algorithm, Clock, State
from tessera.errors import TesseraError
from tessera.stores.base import NOWHERE, Sample


class SoloGradient(NamedTuple):
    """A gradient that is applied by itself: its norm is known where it is made, whoever applies which part of it."""

    values: Any
    squares: jax.Array
    summary: Any = ()
    """The summary of the draw that it belongs to, where it is absorbed."""


class Tensors(NamedTuple):
    """Which tensor each element of a flat range belongs to."""

    ids: Any
    """int32 [elements]; for padding the number of tensors."""
    names: Any
    """Zeros [tensors]: tells how many there are."""


def no_priorities(groups: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Priorities for no row at all."""
    return np.full((groups, rows), NOWHERE, np.int32), np.zeros((groups, rows), np.float32)


def instead(sample: Sample, groups: int) -> Sample:
    """So many groups out of another store's sample; priorities for them go nowhere."""
    there = len(jax.tree.leaves(sample.rows if sample.index is None else sample.index)[0])
    picked = jax.tree.map(lambda x: x[np.arange(groups) % there], sample)
    return picked if picked.index is None else picked._replace(index=no_priorities(*picked.index.shape)[0])


def values_of(gradients: Any) -> Any:
    """The gradients themselves."""
    return gradients.values if isinstance(gradients, SoloGradient) else gradients


def carried(state: State, carries: str, target: bool = False) -> dict[str, Any]:
    """What peers exchange of a state: every real number of it, and the clock.

    A slow copy of the params is averaged with them, but never added to: each peer would add the whole step.
    """
    parts = {"params": state.params, "statistics": state.statistics, "applies": state.clock.applies}
    if target:
        parts["target"] = state.target
    if carries == "state":
        parts["optimizer"] = [x for x in jax.tree.leaves(state.optimizer) if jnp.issubdtype(x.dtype, jnp.floating)]
    return parts


def difference(state: State, base: dict[str, Any], carries: str) -> dict[str, Any]:
    """By how much a state moved since `base` was carried from it."""
    return jax.tree.map(jnp.subtract, carried(state, carries), base)


def adopted(state: State, updates: dict[str, Any], carries: str) -> State:
    """The state with what peers made together in it; whole numbers of the optimiser stay its own."""
    optimizer = state.optimizer
    if carries == "state":
        leaves, structure = jax.tree.flatten(state.optimizer)
        given = iter(updates["optimizer"])
        leaves = [next(given) if jnp.issubdtype(x.dtype, jnp.floating) else x for x in leaves]
        optimizer = jax.tree.unflatten(structure, leaves)
    applies = jnp.asarray(updates["applies"], jnp.int32)
    return state._replace(
        params=updates["params"],
        statistics=updates["statistics"],
        optimizer=optimizer,
        target=updates.get("target", state.target),
        clock=Clock(applies, state.clock.horizon),
    )


@dataclass(frozen=True)
class Shards:
    """Flat ranges of equal size over the params' elements, in the order of their leaves; the last is padded."""

    template: Any
    """A tree like the params; only shapes and dtypes matter."""
    count: int

    @property
    def total(self) -> int:
        """Elements of all params."""
        return sum(math.prod(x.shape) for x in jax.tree.leaves(self.template))

    @property
    def size(self) -> int:
        """Elements of one shard."""
        return -(-self.total // self.count)

    def part(self, tree: Any, shard: int) -> np.ndarray:
        """Elements of one shard, from a tree like the template on the host."""
        begin, end = shard * self.size, (shard + 1) * self.size
        pieces, offset = [], 0
        for leaf in jax.tree.leaves(tree):
            a, b = max(begin - offset, 0), min(end - offset, math.prod(leaf.shape))
            if a < b:
                pieces.append(np.asarray(leaf).reshape(-1)[a:b])
            offset += math.prod(leaf.shape)
        found = np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
        return np.pad(found, (0, self.size - len(found)))

    def traced_part(self, tree: Any, shard: int) -> jax.Array:
        """The same for traced values."""
        flat = jnp.concatenate([x.reshape(-1) for x in jax.tree.leaves(tree)])
        return jnp.pad(flat, (0, self.size * self.count - self.total))[shard * self.size : (shard + 1) * self.size]

    def whole(self, parts: list[Any]) -> Any:
        """A tree like the template, from all shards in order."""
        flat = np.concatenate([np.asarray(p) for p in parts])
        leaves, structure = jax.tree.flatten(self.template)
        edges = np.cumsum([0, *(math.prod(x.shape) for x in leaves)])
        cut = [flat[a:b].reshape(x.shape) for a, b, x in zip(edges, edges[1:], leaves, strict=False)]
        return jax.tree.unflatten(structure, cut)

    def tensors(self, shard: int) -> Tensors:
        """Which tensor each element of a shard belongs to."""
        sizes = [math.prod(x.shape) for x in jax.tree.leaves(self.template)]
        ids = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        ids = np.pad(ids, (0, self.size * self.count - self.total), constant_values=len(sizes))
        return Tensors(ids[shard * self.size : (shard + 1) * self.size], np.zeros(len(sizes), np.int8))

    def join(self, parts: list[Any], like: Any) -> Any:
        """Join values of all shards that hold ranges in the places of params (states, views), into one like `like`."""
        first, *rest = parts

        def leaf(whole: Any, mine: Any, *others: Any) -> Any:
            if self._like_params(whole) and np.shape(mine) == (self.size,):
                return self.whole([mine, *others])
            return mine

        return _map_at(leaf, like, first, *rest)

    def _like_params(self, tree: Any) -> bool:
        structure: Any = jax.tree.structure(tree)
        return structure == jax.tree.structure(self.template)

    def split(self, value: Any, shard: int, like: Any) -> Any:
        """One shard's part of a state that holds whole params; `like` is such a part."""

        def leaf(mine: Any, whole: Any) -> Any:
            if self._like_params(whole) and np.shape(mine) == (self.size,):
                return self.part(whole, shard)
            return whole

        return jax.tree.map(leaf, like, value)


def _map_at(function: Any, whole: Any, first: Any, *rest: Any) -> Any:
    """Map over leaves of `first`, giving the part of `whole` that stands in the same place."""
    leaves = jax.tree.leaves(first)
    structure: Any = jax.tree.structure(first)
    places = structure.flatten_up_to(whole)
    others = [jax.tree.leaves(r) for r in rest]
    return jax.tree.unflatten(
        structure,
        [function(w, x, *(o[k] for o in others)) for k, (w, x) in enumerate(zip(places, leaves, strict=True))],
    )


def shards_of(algorithm: Algorithm, count: int) -> Shards:
    """The shards of an algorithm's params."""
    template = jax.eval_shape(algorithm.init, jax.random.key(0))
    if len({x.dtype for x in jax.tree.leaves(template)}) > 1:
        raise TesseraError(
            f"params of {algorithm.name} have several dtypes and cannot be cut into flat ranges: use one shard only"
        )
    return Shards(template, count)
