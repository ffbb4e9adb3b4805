"""A replay that is used outside of a compiled program: it owns its buffer and may be shared by threads."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import jax

from tessera.stores.base import Experience, Sample
from tessera.stores.replay import Replay, ReplayBuffer


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def _put(store: Replay, buffer: ReplayBuffer, experience: Experience) -> ReplayBuffer:
    return store.put(buffer, experience)


@partial(jax.jit, static_argnums=0)
def _sample(store: Replay, buffer: ReplayBuffer, key: jax.Array) -> Sample:
    return store.sample(buffer, key)


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def _update(store: Replay, buffer: ReplayBuffer, index: jax.Array, priority: jax.Array) -> ReplayBuffer:
    return store.update(buffer, index, priority)


class HostReplay:
    """One group's replay in main memory: the functions of `Replay`, compiled, and changed in place.

    Arguments are NumPy arrays, or JAX arrays of the CPU backend.
    """

    def __init__(self, store: Replay, row: Any, rows_per_put: int) -> None:
        self.store = store
        """The share of one group (see `Replay.split`)."""
        self._cpu = jax.local_devices(backend="cpu")[0]
        # A put or update takes the old buffer's memory for the new one, so nobody may read it meanwhile.
        self._lock = threading.Lock()
        with jax.default_device(self._cpu):
            self._buffer = jax.device_put(store.init(row, rows_per_put), self._cpu)

    def __len__(self) -> int:
        """How many rows it holds."""
        with self._lock:
            return int(self._buffer.filled)

    @property
    def buffer(self) -> ReplayBuffer:
        """The buffer, for checkpoints: a copy, as the next put takes the memory of the one in use."""
        with self._lock:
            return jax.tree.map(lambda x: x.copy(), self._buffer)

    def restore(self, buffer: ReplayBuffer) -> None:
        """Go on from a buffer that was saved; it must have the shapes of the present one."""
        copied = jax.tree.map(
            lambda x, like: jax.device_put(x, self._cpu).astype(like.dtype).copy(), buffer, self._buffer
        )
        with self._lock:
            self._buffer = copied

    def put(self, experience: Experience) -> None:
        """Add one unroll's experience, leaves [T, n, ...]."""
        with self._lock:
            self._buffer = _put(self.store, self._buffer, experience)

    def sample(self, key: jax.Array) -> Sample:
        """Draw once; there must be at least one row."""
        with self._lock:
            return _sample(self.store, self._buffer, key)

    def update(self, index: jax.Array, priority: jax.Array) -> None:
        """Set new priorities [B] at the slots `index` [B]."""
        with self._lock:
            self._buffer = _update(self.store, self._buffer, index, priority)
