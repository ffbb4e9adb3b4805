"""Names of the leaves of a pytree."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def leaf_path(path: tuple[Any, ...]) -> str:
    """A key path as text, such as `state/params/kernel` or `buffer/rows/0`; checkpoints name arrays by it."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def shapes_by_path(tree: Any) -> dict[str, tuple[int, ...]]:
    """The shape of every leaf."""
    return {leaf_path(path): np.shape(leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}
