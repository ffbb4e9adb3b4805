"""Names of the leaves of a pytree."""

from __future__ import annotations

from typing import Any

import jax


def leaf_path(path: tuple[Any, ...]) -> str:
    """A key path as text, such as `state/params/kernel` or `buffer/rows/0`; checkpoints name arrays by it."""
    return jax.tree_util.keystr(path, simple=True, separator="/")
