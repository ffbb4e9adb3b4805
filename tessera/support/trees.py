"""Names of the leaves of a pytree."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np


def leaf_path(path: tuple[Any, ...]) -> str:
    """A key path as text, such as `state/params/kernel` or `buffer/rows/0`; checkpoints name arrays by it."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def shapes_by_path(tree: Any) -> dict[str, tuple[int, ...]]:
    """The shape of every leaf."""
    return {leaf_path(path): np.shape(leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def is_key(leaf: Any) -> bool:
    """Whether a leaf is an array of random keys, or has the type of one."""
    return hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def bytes_of(tree: Any) -> int:
    """Bytes of all arrays, of which only shapes and types are needed; a key is two words of 32 bits."""
    return sum(math.prod(x.shape) * (8 if is_key(x) else np.dtype(x.dtype).itemsize) for x in jax.tree.leaves(tree))
