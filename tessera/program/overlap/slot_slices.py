"""Slices of slots by groups, merged slices, and stacks of iterations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from tessera.envs.base import HostVector
from tessera.program.nodes import SLOTS


class SliceValues(Protocol):
    """What slicing asks of the values in slots."""

    def slice(self, value: Any, axis: int, part: slice) -> Any:
        """Some entries along an axis."""

    def join(self, values: Sequence[Any], axis: int) -> Any:
        """The entries of all along an axis."""


class SliceTrees:
    """Slices of trees of arrays."""

    def slice(self, value: Any, axis: int, part: slice) -> Any:
        """Some entries along an axis."""
        return jax.tree.map(lambda x: x[(slice(None),) * axis + (part,)], value)

    def join(self, values: Sequence[Any], axis: int) -> Any:
        """The entries of all along an axis."""
        return concatenate_trees(list(values), axis)


TREES = SliceTrees()


def slice_groups(slot: str, value: Any, groups: slice, values: SliceValues = TREES) -> Any:
    """Some groups of a slot; a slot without groups is the same for every slice."""
    known = SLOTS[slot]
    if known.layout != "groups" or isinstance(value, HostVector):
        return value
    return values.slice(value, known.axis, groups)


def merge_groups(slot: str, slices: list[Any], values: SliceValues = TREES) -> Any:
    """A slot with all groups, from its slices."""
    known = SLOTS.get(slot)
    return values.join(slices, known.axis) if known is not None and known.layout == "groups" else slices[0]


def concatenate_trees(trees: list[Any], axis: int) -> Any:
    """Concatenate trees along an axis; NumPy arrays stay on the host."""
    if len(trees) == 1:
        return trees[0]

    def leaf(*xs: Any) -> Any:
        on_host = all(isinstance(x, np.ndarray) for x in xs)
        return np.concatenate(xs, axis) if on_host else jnp.concatenate(xs, axis)

    return jax.tree.map(leaf, *trees)


def stack_trees(trees: list[Any], axis: int = 0) -> Any:
    """Stack trees on a new axis; NumPy arrays stay on the host."""

    def leaf(*xs: Any) -> Any:
        return np.stack(xs, axis) if isinstance(xs[0], np.ndarray | np.generic) else jnp.stack(xs, axis)

    return jax.tree.map(leaf, *trees)
