"""What replicas with params of their own exchange: single gradients, flat ranges of params, joint updates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tessera.algorithms.contract import Algorithm, State
from tessera.errors import TesseraError
from tessera.stores.base import NOWHERE, Sample


class SoloGradient(NamedTuple):
    """A gradient that is applied alone, not in a mean: it brings its norm, which no single shard could compute."""

    values: Any
    squares: jax.Array
    summary: Any = ()
    """The summary of its draw, where the algorithm absorbs it."""


class Tensors(NamedTuple):
    """The tensor that each element of a flat range belongs to."""

    ids: Any
    """int32 [elements]; padding has the number of tensors."""
    names: Any
    """Zeros [tensors]: only their number matters."""


def no_priorities(groups: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Priorities that belong to no row."""
    return np.full((groups, rows), NOWHERE, np.int32), np.zeros((groups, rows), np.float32)


def substitute_groups(sample: Sample, groups: int) -> Sample:
    """Make up a sample of `groups` groups from another store's sample; its priorities go nowhere."""
    held = len(jax.tree.leaves(sample.rows if sample.index is None else sample.index)[0])
    picked = jax.tree.map(lambda x: x[np.arange(groups) % held], sample)
    return picked if picked.index is None else picked._replace(index=no_priorities(*picked.index.shape)[0])


def squared_sums(tree: Any, tensors: Any = ()) -> jax.Array:
    """Sum of squares of each tensor, [tensors]; for a flat range with its `tensors`, the part in that range."""
    if isinstance(tensors, Tensors):
        return jnp.zeros(tensors.names.shape, tree.dtype).at[tensors.ids].add(jnp.square(tree), mode="drop")
    return jnp.stack([jnp.sum(jnp.square(x)) for x in jax.tree.leaves(tree)])


def gradient_values(gradients: Any) -> Any:
    """The gradients, without what a `SoloGradient` brings along."""
    return gradients.values if isinstance(gradients, SoloGradient) else gradients


def exchanged_parts(state: State, carries: str) -> dict[str, Any]:
    """The parts of a state that peers take the mean of: all real numbers in it, and the low word of the clock."""
    parts = {
        "params": state.params,
        "statistics": state.statistics,
        "applies": state.clock.applies,
        "target": state.target,
    }
    if carries == "state":
        parts["optimizer"] = [x for x in jax.tree.leaves(state.optimizer) if jnp.issubdtype(x.dtype, jnp.floating)]
    return parts


def adopt_updates(state: State, updates: dict[str, Any], carries: str) -> State:
    """The state with the peers' joint updates; it keeps the integers of its optimiser."""
    optimizer = state.optimizer
    if carries == "state":
        leaves, structure = jax.tree.flatten(state.optimizer)
        updated = iter(updates["optimizer"])
        leaves = [next(updated) if jnp.issubdtype(x.dtype, jnp.floating) else x for x in leaves]
        optimizer = jax.tree.unflatten(structure, leaves)
    return state._replace(
        params=updates["params"],
        statistics=updates["statistics"],
        optimizer=optimizer,
        target=updates["target"],
        clock=state.clock.near(updates["applies"]),
    )


@dataclass(frozen=True)
class Shards:
    """Flat ranges of equal size over the elements of the params, in the order of the leaves; the last is padded."""

    template: Any
    """A tree like the params, of which only shapes and dtypes matter."""
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
        """Elements of one shard, from a tree like the template, on the host."""
        begin, end = shard * self.size, (shard + 1) * self.size
        pieces, offset = [], 0
        for leaf in jax.tree.leaves(tree):
            a, b = max(begin - offset, 0), min(end - offset, math.prod(leaf.shape))
            if a < b:
                pieces.append(np.asarray(leaf).reshape(-1)[a:b])
            offset += math.prod(leaf.shape)
        elements = np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
        return np.pad(elements, (0, self.size - len(elements)))

    def traced_part(self, tree: Any, shard: int) -> jax.Array:
        """Elements of one shard, from a traced tree."""
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
        """The tensor that each element of a shard belongs to."""
        sizes = [math.prod(x.shape) for x in jax.tree.leaves(self.template)]
        ids = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        ids = np.pad(ids, (0, self.size * self.count - self.total), constant_values=len(sizes))
        return Tensors(ids[shard * self.size : (shard + 1) * self.size], np.zeros(len(sizes), np.int8))

    def join(self, parts: list[Any], like: Any) -> Any:
        """Join the shards' states or views, which have flat ranges in the place of params, into one like `like`."""
        first, *rest = parts

        def leaf(whole: Any, part: Any, *others: Any) -> Any:
            if self._like_params(whole) and np.shape(part) == (self.size,):
                return self.whole([part, *others])
            return part

        return _map_at(leaf, like, first, *rest)

    def _like_params(self, tree: Any) -> bool:
        structure: Any = jax.tree.structure(tree)
        return structure == jax.tree.structure(self.template)

    def split(self, value: Any, shard: int, like: Any) -> Any:
        """One shard's part of a state with whole params; `like` is such a part."""

        def leaf(part: Any, whole: Any) -> Any:
            if self._like_params(whole) and np.shape(part) == (self.size,):
                return self.part(whole, shard)
            return whole

        return jax.tree.map(leaf, like, value)


def _map_at(function: Any, whole: Any, first: Any, *rest: Any) -> Any:
    """Map over the leaves of `first`, each with the subtree of `whole` in the same place."""
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
