"""Random keys from (seed, purpose, clock, global index), and never from the place where they are used.

A clock counts what an operator has done, as uint32 [2]: the low word, then the high one. A run passes 2**32 steps of an
environment within weeks, and JAX has no wider integers unless it is asked to make all numbers wide.
"""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_HIGH = np.asarray([0x9E3779B1, 0x85EBCA77], np.uint32)
"""Odd factors that spread the high word over a key: plainly added it would give the key of another seed."""


def clock_at(count: int) -> np.ndarray:
    """The clock that shows `count`."""
    return np.asarray([count % 2**32, count >> 32], np.uint32)


def count_of(clock: Any) -> int:
    """What a clock shows, on the host."""
    low, high = np.asarray(clock).tolist()
    return int(low + (high << 32))


def later(clock: Any, steps: Any) -> jax.Array:
    """The clock after so many more steps, fewer than 2**32."""
    low = clock[0] + jnp.asarray(steps, jnp.uint32)
    return jnp.stack([low, clock[1] + (low < clock[0])])


def root_key(seed: int) -> jax.Array:
    """Make the key that every other key of a run derives from."""
    return jax.random.key(seed)


def derive(root: jax.Array, purpose: str, clock: Any = 0, *indices: Any) -> jax.Array:
    """Derive the key for a purpose, a clock (or a plain number) and indices.

    The purpose and the clock's high word are mixed in by XOR, since a hash would run once per step. That is enough:
    each derivation ends with a hash over at least one word, and keys that differ in any bit give unrelated numbers. A
    high word of 0 changes nothing.
    """
    low, high = clock_at(clock) if isinstance(clock, int) else (clock[0], clock[1])
    words = hashlib.blake2b(purpose.encode(), digest_size=8).digest()
    salt = np.frombuffer(words, np.uint32)
    key = jax.random.wrap_key_data(jax.random.key_data(root) ^ salt ^ (high * _HIGH))
    for index in (low, *indices):
        key = jax.random.fold_in(key, index)
    return key


def derive_each(root: jax.Array, purpose: str, clock: Any, ids: jax.Array) -> jax.Array:
    """Derive one key for each global index in `ids`, of any shape."""
    base = derive(root, purpose, clock)
    keys = jax.vmap(lambda i: jax.random.fold_in(base, i))(ids.reshape(-1))
    return keys.reshape(ids.shape)


def derive_rows(root: jax.Array, purpose: str, clock: Any, ids: jax.Array, rows: jax.Array) -> jax.Array:
    """Derive one key for each row, [groups × k], by its group and its number in the group's batch, [groups, k]."""
    in_group = jax.vmap(jax.random.fold_in, (None, 0))
    return jax.vmap(in_group)(derive_each(root, purpose, clock, ids), rows).reshape(-1)


def environment_seed(seed: int, update: int, life: int = 0) -> int:
    """The seed of host environments that start new episodes after `update` updates of a run.

    `life` counts the processes that a replica's place has had before: its episodes are not played again. At the
    beginning of a run it is the run's own seed.
    """
    if not update and not life:
        return seed
    return int(np.random.SeedSequence([seed % 2**64, update, life]).generate_state(1, np.uint64)[0] >> 1)
