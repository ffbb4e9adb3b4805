"""Random keys from (seed, purpose, clock, global index), and never from the place where they are used."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import numpy as np


def root_key(seed: int) -> jax.Array:
    """Make the key that every other key of a run derives from."""
    return jax.random.key(seed)


def derive(root: jax.Array, purpose: str, *indices: Any) -> jax.Array:
    """Derive the key for a purpose and indices.

    The purpose is mixed in by XOR, since a hash would run once per step. That is enough: each derivation ends with a
    hash over at least one index, and keys that differ in any bit give unrelated numbers.
    """
    words = hashlib.blake2b(purpose.encode(), digest_size=8).digest()
    salt = np.frombuffer(words, np.uint32)
    key = jax.random.wrap_key_data(jax.random.key_data(root) ^ salt)
    for index in indices or (0,):
        key = jax.random.fold_in(key, index)
    return key


def derive_each(root: jax.Array, purpose: str, clock: Any, ids: jax.Array) -> jax.Array:
    """Derive one key for each global index in `ids`, of any shape."""
    base = derive(root, purpose, clock)
    keys = jax.vmap(lambda i: jax.random.fold_in(base, i))(ids.reshape(-1))
    return keys.reshape(ids.shape)


def environment_seed(seed: int, update: int, life: int = 0) -> int:
    """The seed of host environments that start new episodes after `update` updates of a run.

    `life` counts the processes that a replica's place has had before: its episodes are not played again. At the
    beginning of a run it is the run's own seed.
    """
    if not update and not life:
        return seed
    return int(np.random.SeedSequence([seed % 2**64, update, life]).generate_state(1, np.uint64)[0] >> 1)
