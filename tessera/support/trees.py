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


def bytes_of(tree: Any) -> int:
    """Bytes of all arrays, of which only shapes and types are needed."""
    return sum(math.prod(x.shape) * np.dtype(_plain(x.dtype)).itemsize for x in jax.tree.leaves(tree))


def _plain(dtype: Any) -> Any:
    """The type of a key's words: two of 32 bits."""
    return np.uint64 if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key) else dtype
