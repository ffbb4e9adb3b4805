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
    """Address at which the first of them is found."""
    size: int
    number: int


def join(group: Membership) -> None:
    """Join the group; before JAX is used for anything else. Whoever loses a peer ends: a group starts again as one."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        group.coordinator, group.size, group.number, initialization_timeout=JOIN_SECONDS, cluster_detection_method=None
    )


class AllReduce:
    """PeerExchange ends of a channel among peers: what is received is the weighted mean of what all of them have sent.

    The peers are waited for on a thread of its own, so that a replica that waits can still be spoken to.
    """

    def __init__(self, share: float, wake: Callable[[], None]) -> None:
        """`share` is this process's part of the mean; `wake` makes the replica look again."""
        self.flow = Flow()
        self._share, self._wake = share, wake
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tessera-mean")
        self._under_way: Future[Any] | None = None
        first = {d.process_index: d for d in reversed(jax.devices())}
        self._mesh = Mesh(np.asarray([first[k] for k in sorted(first)]), (AXIS,))
        self._mine = first[jax.process_index()]
        whole = NamedSharding(self._mesh, PartitionSpec())
        self._sum = jax.jit(lambda xs: jax.tree.map(lambda x: x.sum(0), xs), out_shardings=whole)

    def send(self, value: Any) -> bool:
        """Take part in the next mean."""
        own = jax.tree.map(np.array, jax.device_get(value))  # programs reuse the buffers of what they have sent
        self._under_way = self._thread.submit(self._reduce, own)
        self._under_way.add_done_callback(lambda _: self._wake())
        self.flow.messages += 1
        return True

    def receive(self) -> tuple[bool, Any]:
        """Give the mean, once all have taken part."""
        assert self._under_way is not None
        if not self._under_way.done():
            return False, None
        value, self._under_way = self._under_way.result(), None
        self.flow.messages += 1
        return True, value

    def _reduce(self, value: Any) -> Any:
        """Sum shares, all numbers of one type at once; whole numbers are the same everywhere, and kept."""
        leaves, structure = jax.tree.flatten(value)
        flat: dict[str, list[np.ndarray]] = {}
        for x in leaves:
            if np.issubdtype(x.dtype, np.floating):
                flat.setdefault(x.dtype.str, []).append(np.ravel(x * x.dtype.type(self._share)))
        sums = {k: np.asarray(x.addressable_data(0)) for k, x in self._sum(self._spread(flat)).items()}
        used = dict.fromkeys(sums, 0)
        out = []
        for x in leaves:
            kind = x.dtype.str
            if kind in sums:
                x, used[kind] = sums[kind][used[kind] : used[kind] + x.size].reshape(x.shape), used[kind] + x.size
            out.append(x)
        return jax.tree.unflatten(structure, out)

    def _spread(self, flat: dict[str, list[np.ndarray]]) -> dict[str, jax.Array]:
        """Arrays with a row for each peer, of which this process has its own."""
        rows = NamedSharding(self._mesh, PartitionSpec(AXIS))
        out: dict[str, jax.Array] = {}
        for kind, parts in flat.items():
            row = jax.device_put(np.concatenate(parts)[None], self._mine)
            shape = (self._mesh.size, row.shape[1])
            out[kind] = jax.make_array_from_single_device_arrays(shape, rows, [row])
        return out
