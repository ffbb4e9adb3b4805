"""A replica's link to the driver, and its ends of the channels: one class for each engine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

from tessera.channels.control_words import CONTROL_WORDS, Control
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
        """Both ends of a channel among peers, if they are one thing."""

    def look(self) -> int:
        """A number that changes with every wake-up."""

    def wait(self, seen: int, seconds: float) -> None:
        """Wait for a wake-up since `seen` was looked at, or until the seconds are over."""

    def has_command(self) -> bool:
        """Whether the driver has sent a command."""

    def next_command(self) -> tuple[dict[str, Any], Arrays]:
        """The next command, and the arrays that came with it."""

    def send(self, kind: str, arrays: Arrays, **more: Any) -> None:
        """Send a message to the driver."""

    def close(self) -> None:
        """Free what it holds."""


@dataclass(frozen=True)
class LocalJob(Job):
    """A job for a process of this machine: everything shared lies in one arena."""

    layout: ArenaLayout | None = None
    arena: tuple[int, int, int] = (0, 0, 0)

    def work(self, connection: Connection) -> None:
        """Be that replica until the run is over."""
        from tessera.engines.replica.process import ReplicaProcess  # JAX and all that is needed only here

        ReplicaProcess(self, LocalDriverLink(self, connection)).work()


class LocalDriverLink:
    """Control words and rings in shared memory, a pipe for commands and messages, blocks of memory for large ones."""

    def __init__(self, job: LocalJob, connection: Connection) -> None:
        assert job.layout is not None
        self._connection = connection
        arena = Arena.attach(*job.arena)
        self._bell = Bell(arena, job.layout.bells, job.layout.processes + 1, job.place)
        self.control = local_control(arena, job.layout, job.place)
        self.link_specs = {name: wire.spec for name, wire in job.layout.links.items()}
        self.link: Callable[[int, int], Link]
        self.link, self._tree = make_ends(job.layout, arena, self._bell)
        self._plan, self._number = job.plan, job.number
        self._block: int | None = None

    def peer_exchange(self, channel: int) -> PeerExchange | None:
        """A memory that peers add to."""
        shared = isinstance(self._plan.channels[channel].discipline, Shared)
        return SharedExchange(self._tree(channel, self._number)) if shared else None

    def look(self) -> int:
        """A number that changes with every wake-up."""
        return self._bell.look()

    def wait(self, seen: int, seconds: float) -> None:
        """Wait for a wake-up since `seen` was looked at, or until the seconds are over."""
        self._bell.wait(seen, seconds)

    def has_command(self) -> bool:
        """Whether the driver has sent a command."""
        return self._connection.poll(0)

    def next_command(self) -> tuple[dict[str, Any], Arrays]:
        """The next command, and the arrays that came with it."""
        command = json.loads(self._connection.recv_bytes())
        if command["do"] == "free":
            self.close()
            return {}, {}
        return command, read_block(*command.pop("block"))[1] if "block" in command else {}

    def send(self, kind: str, arrays: Arrays, **more: Any) -> None:
        """Send a message to the driver; large arrays stay in a block of memory until the driver has copied them."""
        if kind in ("snapshot", "peer_state"):
            self.close()
            self._block, size = write_block({}, arrays)
            arrays, more = {}, {**more, "block": (os.getpid(), self._block, size)}
        self._connection.send_bytes(pack({"kind": kind, **more}, arrays))

    def close(self) -> None:
        """Free the block of memory that was sent last."""
        if self._block is not None:
            os.close(self._block)
            self._block = None


def local_words(arena: Arena, layout: ArenaLayout, place: int) -> memoryview:
    """The control words of one replica in an arena."""
    return arena.array(layout.control + place * CONTROL_WORDS * 8, (CONTROL_WORDS,), np.int64).data


def local_control(arena: Arena, layout: ArenaLayout, place: int) -> Control:
    """The same words, by name."""
    return Control(local_words(arena, layout, place))
