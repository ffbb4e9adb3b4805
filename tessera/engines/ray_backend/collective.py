"""Collectives between processes by jax.distributed: gloo between CPUs, NCCL between GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tessera.channels.link import Flow
from tessera.channels.shared_memory import Layout

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


class PeerGroup:
    """The processes that this one has joined.

    Collectives wait for the peers on a thread of their own, so that a replica that waits can still handle commands. All
    channels share that thread: collectives have to come in the same order everywhere.
    """

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="tessera-peers")
        devices = {d.process_index: d for d in reversed(jax.devices())}
        self._mesh = Mesh(np.asarray([devices[k] for k in sorted(devices)]), (AXIS,))
        self._device = devices[jax.process_index()]
        whole = NamedSharding(self._mesh, PartitionSpec())
        self._sum = jax.jit(lambda rows: rows.sum(0), out_shardings=whole)
        self._all = jax.jit(lambda rows: rows, out_shardings=whole)

    def sum(self, row: np.ndarray) -> np.ndarray:
        """The sum of all peers' rows."""
        return np.asarray(self._sum(self._rows(row)).addressable_data(0))

    def gather(self, row: np.ndarray) -> np.ndarray:
        """The rows of all peers, which are of one size."""
        return np.asarray(self._all(self._rows(row)).addressable_data(0))

    def _rows(self, row: np.ndarray) -> jax.Array:
        """An array with a row for each peer; this process holds its own."""
        own = jax.device_put(row[None], self._device)
        rows = NamedSharding(self._mesh, PartitionSpec(AXIS))
        return jax.make_array_from_single_device_arrays((self._mesh.size, *row.shape), rows, [own])


class PeerCollective:
    """Both ends of a channel among peers, where each waits for all. The replica's thread calls `send` and `receive`."""

    def __init__(self, group: PeerGroup, wake: Callable[[], None]) -> None:
        """`wake` makes the replica look again."""
        self.flow = Flow()
        self.group, self._wake = group, wake
        self._pending: Future[Any] | None = None

    def send(self, value: Any) -> bool:
        """Begin the next one."""
        own = jax.tree.map(np.array, jax.device_get(value))  # programs reuse the buffers of what they have sent
        self._pending = self.group.thread.submit(self.exchange, own)
        self._pending.add_done_callback(lambda _: self._wake())
        self.flow.messages += 1
        return True

    def receive(self) -> tuple[bool, Any]:
        """Whether all have sent, and what comes of it."""
        assert self._pending is not None
        if not self._pending.done():
            return False, None
        value, self._pending = self._pending.result(), None
        self.flow.messages += 1
        return True, value

    def exchange(self, value: Any) -> Any:
        """Wait for all peers."""
        raise NotImplementedError


class AllReduce(PeerCollective):
    """Each peer receives the weighted mean of what all have sent."""

    def __init__(self, group: PeerGroup, wake: Callable[[], None], weight: float) -> None:
        """`weight` is this process's part of the mean."""
        super().__init__(group, wake)
        self._weight = weight

    def exchange(self, value: Any) -> Any:
        """Sum weighted values, all floats of one dtype at once; integers are equal everywhere and stay as they are."""
        leaves, structure = jax.tree.flatten(value)
        flat: dict[str, list[np.ndarray]] = {}
        for x in leaves:
            if np.issubdtype(x.dtype, np.floating):
                flat.setdefault(x.dtype.str, []).append(np.ravel(x * x.dtype.type(self._weight)))
        sums = {kind: self.group.sum(np.concatenate(parts)) for kind, parts in flat.items()}
        used = dict.fromkeys(sums, 0)
        out = []
        for x in leaves:
            kind = x.dtype.str
            if kind in sums:
                x, used[kind] = sums[kind][used[kind] : used[kind] + x.size].reshape(x.shape), used[kind] + x.size
            out.append(x)
        return jax.tree.unflatten(structure, out)


class AllGather(PeerCollective):
    """Each peer receives what all have sent, put together; n peers with a link to each other would send n² messages."""

    def __init__(
        self,
        group: PeerGroup,
        wake: Callable[[], None],
        likes: Sequence[Any],
        merge: Callable[[dict[int, Any]], Any],
    ) -> None:
        """`likes` are the shapes of what each peer sends; `merge` puts the values of all together."""
        super().__init__(group, wake)
        self._merge = merge
        self._structure: Any = jax.tree.structure(likes[0])
        self._layouts = [Layout.of(jax.tree.leaves(like)) for like in likes]
        self._row = np.zeros(max(layout.nbytes for layout in self._layouts), np.uint8)
        self._views = self._layouts[jax.process_index()].views_in(self._row)

    def exchange(self, value: Any) -> Any:
        """Gather the bytes of all."""
        for view, leaf in zip(self._views, self._structure.flatten_up_to(value), strict=True):
            view[...] = leaf
        rows = np.ascontiguousarray(self.group.gather(self._row))
        pairs = zip(self._layouts, rows, strict=True)
        values = [jax.tree.unflatten(self._structure, layout.views_in(row)) for layout, row in pairs]
        return self._merge(dict(enumerate(values)))
