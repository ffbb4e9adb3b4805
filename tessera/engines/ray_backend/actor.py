"""The Ray actor that holds one replica."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import sys
import threading
from typing import Any

import numpy as np
import ray

from tessera.channels.link import LinkSpec
from tessera.channels.packing import Arrays
from tessera.channels.rings import ArenaLayout
from tessera.channels.rpc.rpc_link import LinkState
from tessera.channels.rpc.wire import LinkName, decode
from tessera.channels.shared_memory import Arena
from tessera.engines.ray_backend.ray_driver_link import Presence, RayDriverLink, Status
from tessera.engines.replica.entry_point import describe_failure
from tessera.engines.replica.job import Job
from tessera.support.machine import available_memory

STATUS_SECONDS = 0.5
"""How long a request for the status stays open, at most."""
LONGEST_LINE = 4096


class ForwardedOutput(io.TextIOBase):
    """What a replica prints: it goes to the driver, and to Ray's own files."""

    def __init__(self, driver_link: RayDriverLink, stream: Any) -> None:
        self._driver_link, self._stream = driver_link, stream

    def write(self, text: str) -> int:
        """Print."""
        self._driver_link.send("log", {}, text=text[:LONGEST_LINE])
        return self._stream.write(text)

    def flush(self) -> None:
        """Flush Ray's stream; the driver's has no buffer."""
        self._stream.flush()


class ReplicaActor:
    """A Ray actor that holds one replica.

    Ray gives each concurrency group a thread: "messages" for calls of other replicas and those about shared memory,
    "driver" for commands and control words, "status" for questions. Methods without a group run on the thread that the
    replica later works on: `join_group` and `attach_memory` before `run_replica`.
    """

    def __init__(self, title: str = "", paths: tuple[str, ...] = ()) -> None:
        """`paths` are where the driver finds modules, for environments and algorithms that are not installed."""
        self._title = title
        sys.path.extend(path for path in paths if path not in sys.path)
        self._driver_link: RayDriverLink | None = None
        self._running = threading.Event()
        self._in_group = False
        self._arena: Arena | None = None
        self._join_failure = ""

    def __repr__(self) -> str:
        """The name in Ray's dashboard and files."""
        return self._title

    def join_group(self, coordinator: str, size: int, number: int) -> None:
        """Join peers for all-reduces: before a job comes, which may already use JAX as it is unpickled."""
        from tessera.engines.ray_backend.collective import Membership, join_group

        self._in_group = True
        try:
            join_group(Membership(coordinator, size, number))
        except Exception as error:  # reported by `run_replica`, once there is a link to the driver
            self._join_failure = f"could not join its peers at {coordinator}: {error}"

    def attach_memory(self, handle: tuple[int, int, int]) -> bool:
        """Open the memory that replicas of this node share, before a job comes; whether that worked."""
        with contextlib.suppress(OSError):  # the process behind the handle is dead, or hidden from this one
            self._arena = Arena.attach(*handle)
        return self._arena is not None

    def run_replica(
        self,
        job: Job,
        link_specs: dict[LinkName, LinkSpec],
        actors: dict[int, Any],
        life: int,
        words: list[int],
        presences: dict[int, Presence],
        layout: ArenaLayout,
        states: dict[int, dict[LinkName, LinkState]] | None,
    ) -> None:
        """Run a replica until the run is over; `states` is what linked replicas know of its predecessor."""
        arena = self._arena if layout.is_shared else Arena(layout.size)
        if arena is None:
            raise RuntimeError("could not open the memory that it shares with others of its node")
        driver_link = RayDriverLink(job, link_specs, actors, life, words, presences, layout, arena, self._in_group)
        if states is not None:
            driver_link.restore_links(states)
        self._driver_link = driver_link
        sys.stdout, sys.stderr = ForwardedOutput(driver_link, sys.stdout), ForwardedOutput(driver_link, sys.stderr)
        self._running.set()
        try:
            from tessera.engines.replica.process import ReplicaProcess  # JAX and all that is needed only here

            if self._join_failure:
                raise RuntimeError(self._join_failure)
            ReplicaProcess(job, driver_link).work()
            driver_link.send("finished", {})
        except BaseException as error:
            driver_link.send(arrays={}, **describe_failure(error))

    @property
    def driver_link(self) -> RayDriverLink:
        """The replica's links; waits until they exist."""
        self._running.wait()
        assert self._driver_link is not None
        return self._driver_link

    @ray.method(concurrency_group="messages", num_returns=0)
    def receive_packet(self, data: bytes, *attachments: np.ndarray) -> None:
        """Receive a packet of another replica; large messages are attached."""
        self.driver_link.receive_packet(*decode(data, attachments))

    @ray.method(concurrency_group="messages")
    def receive_and_reply(self, data: bytes, *attachments: np.ndarray) -> bytes:
        """Receive a packet; everything that is pending for its sender."""
        return self.driver_link.reply_to_packet(*decode(data, attachments))

    @ray.method(concurrency_group="messages")
    def register_successor(self, place: int, actor: Any, life: int) -> dict[LinkName, LinkState]:
        """Send to the successor of a dead replica from now on; what links with its place have carried."""
        return self.driver_link.register_successor(place, actor, life)

    @ray.method(concurrency_group="messages")
    def create_memory(self, size: int) -> tuple[int, int, int] | None:
        """Create the memory that replicas of this node share, if it is available; its handle."""
        if size < available_memory():
            self._arena = Arena(size)
        return self._memory_handle()

    @ray.method(concurrency_group="messages")
    def memory_handle(self) -> tuple[int, int, int] | None:
        """The handle of the memory that replicas of this node share, if this one holds it."""
        return self._memory_handle()

    def _memory_handle(self) -> tuple[int, int, int] | None:
        return None if self._arena is None else self._arena.handle

    @ray.method(concurrency_group="driver", num_returns=0)
    def receive_command(self, command: dict[str, Any], arrays: Arrays) -> None:
        """Receive a command of the driver."""
        self.driver_link.receive_command(command, arrays)

    @ray.method(concurrency_group="driver", num_returns=0)
    def set_control(self, words: dict[int, int], presences: dict[int, Presence]) -> None:
        """Set the words that the driver writes, and the presence of other replicas."""
        self.driver_link.set_control(words, presences)

    @ray.method(concurrency_group="status")
    def free_address(self) -> str:
        """A free address of this node, for the coordinator of an all-reduce."""
        host = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((host, 0))
            return f"{host}:{probe.getsockname()[1]}"

    @ray.method(concurrency_group="status")
    def whereabouts(self) -> tuple[int, str]:
        """The process id, and the node that the process is on."""
        return os.getpid(), ray.get_runtime_context().get_node_id()[:8]

    @ray.method(concurrency_group="status")
    def status(self) -> Status:
        """The replica's status; waits a while for messages to the driver."""
        return self.driver_link.wait_for_status(STATUS_SECONDS)
