"""Slots in parts: some of their groups taken out, parts put together again, iterations stacked."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tessera.envs.base import HostVector
from tessera.program.nodes import SLOTS


def cut_out(slot: str, value: Any, cut: slice) -> Any:
    """Some of a slot's groups; what does not lie in groups is everybody's."""
    known = SLOTS[slot]
    if known.layout != "groups" or isinstance(value, HostVector):
        return value
    return jax.tree.map(lambda x: x[(slice(None),) * known.axis + (cut,)], value)


def whole(slot: str, values: list[Any]) -> Any:
    """A slot from its parts."""
    known = SLOTS.get(slot)
    return joined(values, known.axis) if known is not None and known.layout == "groups" else values[0]


def joined(values: list[Any], axis: int) -> Any:
    """Join trees along an axis, on the host where they are on the host."""
    if len(values) == 1:
        return values[0]

    def leaf(*xs: Any) -> Any:
        on_host = all(isinstance(x, np.ndarray) for x in xs)
        return np.concatenate(xs, axis) if on_host else jnp.concatenate(xs, axis)

    return jax.tree.map(leaf, *values)


def stack(values: list[Any], axis: int = 0) -> Any:
    """Stack trees on a new axis, on the host where they are on the host already."""

    def leaf(*xs: Any) -> Any:
        return np.stack(xs, axis) if isinstance(xs[0], np.ndarray | np.generic) else jnp.stack(xs, axis)

    return jax.tree.map(leaf, *values)
