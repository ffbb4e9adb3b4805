"""Where a replica hears from the driver and answers it, and where its channels end: one kind for each engine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

from tessera.engines.channels.base import Line, Link
from tessera.engines.channels.local import Wiring, make_ends
from tessera.engines.channels.shared import Arena, Bell
from tessera.engines.control import CONTROL_WORDS, Control, Job
from tessera.engines.inbox import Both, Shared
from tessera.engines.packing import Arrays, pack, read_block, write_block


class Desk(Protocol):
    """What a replica needs besides its job."""

    control: Control
    lines: dict[tuple[int, int], Line]

    def link(self, channel: int, lane: int) -> Link:
        """An end of a link."""

    def both(self, channel: int) -> Both | None:
        """Both ends of a channel among peers, if they are one thing."""

    def look(self) -> int:
        """A number that changes whenever there is something new to see."""

    def wait(self, seen: int, seconds: float) -> None:
        """Wait until that number is another one, or the seconds are over."""

    def asked(self) -> bool:
        """Whether the driver has said something."""

    def hear(self) -> tuple[dict[str, Any], Arrays]:
        """What the driver has said next, and arrays that came with it."""

    def tell(self, kind: str, arrays: Arrays, **more: Any) -> None:
        """Say something to the driver."""

    def close(self) -> None:
        """Be done."""


@dataclass(frozen=True)
class LocalJob(Job):
    """A job for a process of this machine: all that is shared lies in one arena."""

    wiring: Wiring | None = None
    arena: tuple[int, int, int] = (0, 0, 0)

    def work(self, connection: Connection) -> None:
        """Be that replica until the run is over."""
        from tessera.engines.working import Worker  # JAX and all that is needed only here

        Worker(self, LocalDesk(self, connection)).work()


class LocalDesk:
    """Words and rings in shared memory, a pipe for what is said, and blocks of memory for what is large."""

    def __init__(self, job: LocalJob, connection: Connection) -> None:
        assert job.wiring is not None
        self._connection = connection
        arena = Arena.attach(*job.arena)
        self._bell = Bell(arena, job.wiring.bells, job.wiring.processes + 1, job.place)
        self.control = local_control(arena, job.wiring, job.place)
        self.lines = {name: wire.line for name, wire in job.wiring.wires.items()}
        self.link: Callable[[int, int], Link]
        self.link, self._vector = make_ends(job.wiring, arena, self._bell)
        self._plan = job.plan
        self._block: int | None = None

    def both(self, channel: int) -> Both | None:
        """A memory that peers add to."""
        return Shared(self._vector(channel)) if self._plan.channels[channel].kind == "shared" else None

    def look(self) -> int:
        """A number that changes whenever there is something new to see."""
        return self._bell.look()

    def wait(self, seen: int, seconds: float) -> None:
        """Wait until that number is another one, or the seconds are over."""
        self._bell.wait(seen, seconds)

    def asked(self) -> bool:
        """Whether the driver has said something."""
        return self._connection.poll(0)

    def hear(self) -> tuple[dict[str, Any], Arrays]:
        """What the driver has said next, and arrays that came with it."""
        command = json.loads(self._connection.recv_bytes())
        if command["do"] == "free":
            self.close()
            return {}, {}
        return command, read_block(*command.pop("block"))[1] if "block" in command else {}

    def tell(self, kind: str, arrays: Arrays, **more: Any) -> None:
        """Say something to the driver; what is large is laid open until the driver has copied it."""
        if kind in ("snapshot", "handed"):
            self.close()
            self._block, size = write_block({}, arrays)
            arrays, more = {}, {**more, "block": (os.getpid(), self._block, size)}
        self._connection.send_bytes(pack({"kind": kind, **more}, arrays))

    def close(self) -> None:
        """Be done with what was laid open."""
        if self._block is not None:
            os.close(self._block)
            self._block = None


def local_words(arena: Arena, wiring: Wiring, place: int) -> memoryview:
    """The words of one replica in an arena."""
    return arena.array(wiring.control + place * CONTROL_WORDS * 8, (CONTROL_WORDS,), np.int64).data


def local_control(arena: Arena, wiring: Wiring, place: int) -> Control:
    """The same, by name."""
    return Control(local_words(arena, wiring, place))
