"""Where a replica hears from the driver and answers it, and where its channels end: one kind for each engine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

from tessera.channels.control import CONTROL_WORDS, Control
from tessera.channels.inboxes import PeerExchange, SharedExchange
from tessera.channels.link import Link, LinkSpec
from tessera.channels.packing import Arrays, pack, read_block, write_block
from tessera.channels.rings import ArenaLayout, make_ends
from tessera.channels.shared_memory import Arena, Bell
from tessera.engines.replica.job import Job
from tessera.graph.disciplines import Shared


class DriverLink(Protocol):
    """What a replica needs besides its job."""

    control: Control
    link_specs: dict[tuple[int, int], LinkSpec]

    def link(self, channel: int, lane: int) -> Link:
        """An end of a link."""

    def peer_exchange(self, channel: int) -> PeerExchange | None:
        """PeerExchange ends of a channel among peers, if they are one thing."""

    def look(self) -> int:
        """A number that changes whenever there is something new to see."""

    def wait(self, seen: int, seconds: float) -> None:
        """Wait until that number is another one, or the seconds are over."""

    def has_command(self) -> bool:
        """Whether the driver has said something."""

    def next_command(self) -> tuple[dict[str, Any], Arrays]:
        """What the driver has said next, and arrays that came with it."""

    def send(self, kind: str, arrays: Arrays, **more: Any) -> None:
        """Say something to the driver."""

    def close(self) -> None:
        """Be done."""


@dataclass(frozen=True)
class LocalJob(Job):
    """A job for a process of this machine: all that is shared lies in one arena."""

    layout: ArenaLayout | None = None
    arena: tuple[int, int, int] = (0, 0, 0)

    def work(self, connection: Connection) -> None:
        """Be that replica until the run is over."""
        from tessera.engines.replica.process import ReplicaProcess  # JAX and all that is needed only here

        ReplicaProcess(self, LocalDriverLink(self, connection)).work()


class LocalDriverLink:
    """Words and rings in shared memory, a pipe for what is said, and blocks of memory for what is large."""

    def __init__(self, job: LocalJob, connection: Connection) -> None:
        assert job.layout is not None
        self._connection = connection
        arena = Arena.attach(*job.arena)
        self._bell = Bell(arena, job.layout.bells, job.layout.processes + 1, job.place)
        self.control = local_control(arena, job.layout, job.place)
        self.link_specs = {name: wire.spec for name, wire in job.layout.links.items()}
        self.link: Callable[[int, int], Link]
        self.link, self._vector = make_ends(job.layout, arena, self._bell)
        self._plan = job.plan
        self._block: int | None = None

    def peer_exchange(self, channel: int) -> PeerExchange | None:
        """A memory that peers add to."""
        shared = isinstance(self._plan.channels[channel].discipline, Shared)
        return SharedExchange(self._vector(channel)) if shared else None

    def look(self) -> int:
        """A number that changes whenever there is something new to see."""
        return self._bell.look()

    def wait(self, seen: int, seconds: float) -> None:
        """Wait until that number is another one, or the seconds are over."""
        self._bell.wait(seen, seconds)

    def has_command(self) -> bool:
        """Whether the driver has said something."""
        return self._connection.poll(0)

    def next_command(self) -> tuple[dict[str, Any], Arrays]:
        """What the driver has said next, and arrays that came with it."""
        command = json.loads(self._connection.recv_bytes())
        if command["do"] == "free":
            self.close()
            return {}, {}
        return command, read_block(*command.pop("block"))[1] if "block" in command else {}

    def send(self, kind: str, arrays: Arrays, **more: Any) -> None:
        """Say something to the driver; what is large is laid open until the driver has copied it."""
        if kind in ("snapshot", "peer_state"):
            self.close()
            self._block, size = write_block({}, arrays)
            arrays, more = {}, {**more, "block": (os.getpid(), self._block, size)}
        self._connection.send_bytes(pack({"kind": kind, **more}, arrays))

    def close(self) -> None:
        """Be done with what was laid open."""
        if self._block is not None:
            os.close(self._block)
            self._block = None


def local_words(arena: Arena, layout: ArenaLayout, place: int) -> memoryview:
    """The words of one replica in an arena."""
    return arena.array(layout.control + place * CONTROL_WORDS * 8, (CONTROL_WORDS,), np.int64).data


def local_control(arena: Arena, layout: ArenaLayout, place: int) -> Control:
    """The same, by name."""
    return Control(local_words(arena, layout, place))
