"""All-reduce between processes by jax.distributed: gloo between CPUs, NCCL between GPUs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tessera.channels.link import Flow

JOIN_SECONDS = 60
AXIS = "peers"


class Membership(NamedTuple):
    """One process's part in a group of peers."""

    coordinator: str
    """Address of the first peer."""
    size: int
    number: int


def join_group(group: Membership) -> None:
    """Join a group, before JAX is used for anything else. A process that loses a peer ends: a group restarts as one."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        group.coordinator,
        group.size,
        group.number,
        initialization_timeout=JOIN_SECONDS,
        cluster_detection_method=None,
        coordinator_bind_address=group.coordinator,  # by default it would listen on all addresses
    )


class AllReduce:
    """Both ends of a channel among peers: each receives the weighted mean of what all have sent.

    The replica's thread calls `send` and `receive`. The reduction waits for the peers on a thread of its own, so that a
    replica that waits can still handle commands.
    """

    def __init__(self, weight: float, wake: Callable[[], None]) -> None:
        """`weight` is this process's part of the mean; `wake` makes the replica look again."""
        self.flow = Flow()
        self._weight, self._wake = weight, wake
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tessera-mean")
        self._pending: Future[Any] | None = None
        devices = {d.process_index: d for d in reversed(jax.devices())}
        self._mesh = Mesh(np.asarray([devices[k] for k in sorted(devices)]), (AXIS,))
        self._device = devices[jax.process_index()]
        whole = NamedSharding(self._mesh, PartitionSpec())
        self._sum = jax.jit(lambda xs: jax.tree.map(lambda x: x.sum(0), xs), out_shardings=whole)

    def send(self, value: Any) -> bool:
        """Begin the next mean."""
        own = jax.tree.map(np.array, jax.device_get(value))  # programs reuse the buffers of what they have sent
        self._pending = self._thread.submit(self._reduce, own)
        self._pending.add_done_callback(lambda _: self._wake())
        self.flow.messages += 1
        return True

    def receive(self) -> tuple[bool, Any]:
        """Whether all have sent, and the mean."""
        assert self._pending is not None
        if not self._pending.done():
            return False, None
        value, self._pending = self._pending.result(), None
        self.flow.messages += 1
        return True, value

    def _reduce(self, value: Any) -> Any:
        """Sum weighted values, all floats of one dtype at once; integers are equal everywhere and stay as they are."""
        leaves, structure = jax.tree.flatten(value)
        flat: dict[str, list[np.ndarray]] = {}
        for x in leaves:
            if np.issubdtype(x.dtype, np.floating):
                flat.setdefault(x.dtype.str, []).append(np.ravel(x * x.dtype.type(self._weight)))
        sums = {k: np.asarray(x.addressable_data(0)) for k, x in self._sum(self._global_arrays(flat)).items()}
        used = dict.fromkeys(sums, 0)
        out = []
        for x in leaves:
            kind = x.dtype.str
            if kind in sums:
                x, used[kind] = sums[kind][used[kind] : used[kind] + x.size].reshape(x.shape), used[kind] + x.size
            out.append(x)
        return jax.tree.unflatten(structure, out)

    def _global_arrays(self, flat: dict[str, list[np.ndarray]]) -> dict[str, jax.Array]:
        """Arrays with a row for each peer; this process holds its own row."""
        rows = NamedSharding(self._mesh, PartitionSpec(AXIS))
        out: dict[str, jax.Array] = {}
        for kind, parts in flat.items():
            row = jax.device_put(np.concatenate(parts)[None], self._device)
            shape = (self._mesh.size, row.shape[1])
            out[kind] = jax.make_array_from_single_device_arrays(shape, rows, [row])
        return out
