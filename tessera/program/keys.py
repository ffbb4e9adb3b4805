"""Randomness keyed by what, never by where: (seed, purpose, clock, global index)."""

from __future__ import annotations

import zlib
from typing import Any

import jax


def root_key(seed: int) -> jax.Array:
    """Make the key that every other key of a run derives from."""
    return jax.random.key(seed)


def derive(root: jax.Array, purpose: str, *indices: Any) -> jax.Array:
    """Derive the key for a purpose and indices."""
    key = jax.random.fold_in(root, zlib.crc32(purpose.encode()) & 0x7FFFFFFF)
    for index in indices:
        key = jax.random.fold_in(key, index)
    return key


def derive_each(root: jax.Array, purpose: str, clock: Any, ids: jax.Array) -> jax.Array:
    """Derive one key for each global index in `ids`, of any shape."""
    base = derive(root, purpose, clock)
    keys = jax.vmap(lambda i: jax.random.fold_in(base, i))(ids.reshape(-1))
    return keys.reshape(ids.shape)
