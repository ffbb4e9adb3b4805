"""Slices of slots by groups, merged slices, and stacks of iterations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tessera.envs.base import HostVector
from tessera.program.nodes import SLOTS


def slice_groups(slot: str, value: Any, groups: slice) -> Any:
    """Some groups of a slot; a slot without groups is the same for every slice."""
    known = SLOTS[slot]
    if known.layout != "groups" or isinstance(value, HostVector):
        return value
    return jax.tree.map(lambda x: x[(slice(None),) * known.axis + (groups,)], value)


def merge_groups(slot: str, slices: list[Any]) -> Any:
    """A slot with all groups, from its slices."""
    known = SLOTS.get(slot)
    return concatenate_trees(slices, known.axis) if known is not None and known.layout == "groups" else slices[0]


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
