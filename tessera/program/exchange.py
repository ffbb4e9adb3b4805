"""What replicas with params of their own exchange: single gradients, flat ranges of params, joint updates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tessera.algorithms.contract import Algorithm, State, Step
from tessera.errors import TesseraError
from tessera.stores.base import NOWHERE, Sample


class SoloGradient(NamedTuple):
    """A gradient that is applied alone, not in a mean: it brings its norm, which no single shard could compute."""

    values: Any
    squares: jax.Array
    summary: Any = ()
    """The summary of its draw, where the algorithm absorbs it."""
    due: Any = ()
    """Whether each part of the params that has a period was due when it was made."""


class Tensors(NamedTuple):
    """The tensor that each element of a shard belongs to."""

    ids: Any
    """int32 [elements] for each flat range of the shard; padding has the number of tensors."""
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
    """Sum of squares of each tensor, [tensors]; for a shard with its `tensors`, what of them lies in the shard."""
    if not isinstance(tensors, Tensors):
        return jnp.stack([jnp.sum(jnp.square(x)) for x in jax.tree.leaves(tree)])
    ranges = jax.tree.leaves(tree)
    sums = jnp.zeros(tensors.names.shape, ranges[0].dtype)
    for ids, x in zip(jax.tree.leaves(tensors.ids), ranges, strict=True):
        sums = sums.at[ids].add(jnp.square(x), mode="drop")
    return sums


@dataclass(frozen=True)
class PartNorms:
    """Norms of the labelled parts of the params, from the squared sums of their tensors."""

    tensors: dict[str, slice]
    """Which tensors each part has; tensors are in the order of the leaves."""

    @classmethod
    def of(cls, algorithm: Algorithm) -> PartNorms:
        """Find the parts of an algorithm's params."""
        if not algorithm.parts:
            return cls({})
        params, tensors, end = jax.eval_shape(algorithm.init, jax.random.key(0)), {}, 0
        for label in sorted(params):
            begin, end = end, end + len(jax.tree.leaves(params[label]))
            tensors[label] = slice(begin, end)
        return cls(tensors)

    def step(self, squares: jax.Array) -> Step:
        """The norms of a gradient with these squared sums."""
        norms = {label: jnp.sqrt(squares[tensors].sum()) for label, tensors in self.tensors.items()}
        return Step(jnp.sqrt(squares.sum()), norms)


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
class Ranges:
    """Flat ranges of equal size over the elements of a tree, in the order of the leaves; the last is padded."""

    template: Any
    """A tree of which only shapes and dtypes matter."""
    count: int

    @property
    def sizes(self) -> list[int]:
        """Elements of each leaf."""
        return [math.prod(x.shape) for x in jax.tree.leaves(self.template)]

    @property
    def size(self) -> int:
        """Elements of one range."""
        return -(-sum(self.sizes) // self.count)

    @property
    def shape(self) -> Any:
        """Shape and dtype of one range."""
        return jax.ShapeDtypeStruct((self.size,), jax.tree.leaves(self.template)[0].dtype)

    def part(self, tree: Any, number: int) -> np.ndarray:
        """Elements of one range, from a tree like the template, on the host."""
        begin, end = number * self.size, (number + 1) * self.size
        pieces, offset = [], 0
        for leaf, size in zip(jax.tree.leaves(tree), self.sizes, strict=True):
            a, b = max(begin - offset, 0), min(end - offset, size)
            if a < b:
                pieces.append(np.asarray(leaf).reshape(-1)[a:b])
            offset += size
        elements = np.concatenate(pieces) if pieces else np.zeros(0, self.shape.dtype)
        return np.pad(elements, (0, self.size - len(elements)))

    def traced_part(self, tree: Any, number: int) -> jax.Array:
        """Elements of one range, from a traced tree."""
        flat = jnp.concatenate([x.reshape(-1) for x in jax.tree.leaves(tree)])
        padded = jnp.pad(flat, (0, self.size * self.count - sum(self.sizes)))
        return padded[number * self.size : (number + 1) * self.size]

    def whole(self, parts: list[Any]) -> Any:
        """A tree like the template, from all ranges in order."""
        flat = np.concatenate([np.asarray(p) for p in parts])
        leaves, structure = jax.tree.flatten(self.template)
        edges = np.cumsum([0, *self.sizes])
        cut = [flat[a:b].reshape(x.shape) for a, b, x in zip(edges, edges[1:], leaves, strict=False)]
        return jax.tree.unflatten(structure, cut)

    def tensor_ids(self, number: int, first: int, padding: int) -> np.ndarray:
        """The tensor that each element of a range belongs to, counted from `first`."""
        ids = np.repeat(np.arange(first, first + len(self.sizes), dtype=np.int32), self.sizes)
        ids = np.pad(ids, (0, self.size * self.count - len(ids)), constant_values=padding)
        return ids[number * self.size : (number + 1) * self.size]

    def cuts(self, whole: Any, part: Any) -> bool:
        """Whether `part` has the shape of a range, and `whole` that of the tree."""
        structure: Any = jax.tree.structure(whole)
        return structure == jax.tree.structure(self.template) and np.shape(part) == (self.size,)


@dataclass(frozen=True)
class Shards:
    """How params are cut over the shards of a server: into flat ranges, those of each labelled part by itself.

    A shard has a range in the place of the params, or a dict of ranges by label.
    """

    template: Any
    """A tree like the params, of which only shapes and dtypes matter."""
    count: int
    labels: tuple[str, ...] = ()

    @property
    def ranges(self) -> Any:
        """The ranges of all params, or of each part."""
        if not self.labels:
            return Ranges(self.template, self.count)
        return {label: Ranges(self.template[label], self.count) for label in sorted(self.labels)}

    def part(self, tree: Any, shard: int) -> Any:
        """One shard's ranges of a tree like the params, or of some of its parts, on the host."""
        return self._each(lambda ranges, x: ranges.part(x, shard), tree)

    def traced_part(self, tree: Any, shard: int) -> Any:
        """The same of a traced tree."""
        return self._each(lambda ranges, x: ranges.traced_part(x, shard), tree)

    def shape(self, tree: Any) -> Any:
        """Shapes of a shard's ranges of a tree like the params, or of some of its parts."""
        return self._each(lambda ranges, _: ranges.shape, tree)

    def _each(self, function: Callable[[Ranges, Any], Any], tree: Any) -> Any:
        if not self.labels:
            return function(self.ranges, tree)
        return {label: function(self.ranges[label], part) for label, part in tree.items()}

    def tensors(self, shard: int) -> Tensors:
        """The tensor that each element of a shard belongs to."""
        count = len(jax.tree.leaves(self.template))
        if not self.labels:
            return Tensors(self.ranges.tensor_ids(shard, 0, count), np.zeros(count, np.int8))
        ids, first = {}, 0
        for label, ranges in self.ranges.items():
            ids[label] = ranges.tensor_ids(shard, first, count)
            first += len(ranges.sizes)
        return Tensors(ids, np.zeros(count, np.int8))

    def join(self, parts: list[Any], like: Any) -> Any:
        """Join the shards' states or views, which have ranges in the place of params, into one like `like`."""

        def leaf(path: Any, first: Any, whole: Any, *others: Any) -> Any:
            ranges = self._at(path)
            return ranges.whole([first, *others]) if ranges is not None and ranges.cuts(whole, first) else first

        return jax.tree_util.tree_map_with_path(leaf, parts[0], like, *parts[1:])

    def split(self, value: Any, shard: int, like: Any) -> Any:
        """One shard's part of a state with whole params; `like` is such a part."""

        def leaf(path: Any, part: Any, whole: Any) -> Any:
            ranges = self._at(path)
            return ranges.part(whole, shard) if ranges is not None and ranges.cuts(whole, part) else whole

        return jax.tree_util.tree_map_with_path(leaf, like, value)

    def _at(self, path: Any) -> Ranges | None:
        """The ranges that a place in a state has: those of the label on the way to it."""
        if not self.labels:
            return self.ranges
        keys = [getattr(entry, "key", None) for entry in path]
        return next((self.ranges[key] for key in reversed(keys) if key in self.labels), None)


def shards_of(algorithm: Algorithm, count: int) -> Shards:
    """The shards of an algorithm's params."""
    template = jax.eval_shape(algorithm.init, jax.random.key(0))
    if len({x.dtype for x in jax.tree.leaves(template)}) > 1:
        raise TesseraError(
            f"params of {algorithm.name} have several dtypes and cannot be cut into flat ranges: use one shard only"
        )
    return Shards(template, count, tuple(algorithm.parts))
