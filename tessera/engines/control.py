"""What the driver and one replica tell each other through shared words: no message, no lock, one writer for each."""

from __future__ import annotations

import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np

from tessera.algorithms.base import Algorithm
from tessera.engines.channels.local import CONTROL_WORDS, PRESENCE, Wiring
from tessera.engines.channels.shared import Arena
from tessera.envs.base import Environment
from tessera.graph.plan import Plan

STARTING, RUNNING, WAITING, IDLE = range(4)
"""STARTING also while a program is compiled: that takes as long as it takes, and is not hanging."""
STATES = ("starting", "running", "waiting", "idle")

FREE = 1 << 60
"""The limit of replicas that run at their own pace."""


@dataclass(frozen=True)
class Job:
    """All that a process needs to become a replica. Sent once, when it starts; arrays never travel this way."""

    plan: Plan
    algorithm: Algorithm
    env: Environment
    fragment: int
    number: int
    place: int
    seed: int
    horizon: int
    wiring: Wiring
    arena: tuple[int, int, int]
    x64: bool
    again: bool = False
    """Whether it takes the place of a replica that died."""
    base: int = 0
    """Updates that were made before this engine began."""
    trace: str = ""
    """Where to write a timeline; empty: nowhere."""

    @property
    def title(self) -> str:
        """How messages call the replica."""
        return f"{self.plan.fragments[self.fragment].title}/{self.number}"

    def work(self, connection: Connection) -> None:
        """Be that replica until the run is over."""
        from tessera.engines.working import Worker  # JAX and all that is needed only here

        Worker(self, connection).work()


class Control:
    """The words of one replica."""

    def __init__(self, arena: Arena, wiring: Wiring, place: int) -> None:
        offset = wiring.control + place * CONTROL_WORDS * 8
        self._words = arena.array(offset, (CONTROL_WORDS,), np.int64).data

    @property
    def limit(self) -> int:
        """Updates that may be made; the driver writes it."""
        return self._words[0]

    @limit.setter
    def limit(self, value: int) -> None:
        self._words[0] = value

    @property
    def mark(self) -> int:
        """Updates after which the driver waits for a report, below the limit; the driver writes it."""
        return self._words[6]

    @mark.setter
    def mark(self, value: int) -> None:
        self._words[6] = value

    @property
    def stop(self) -> bool:
        """Whether the run is over; the driver writes it."""
        return bool(self._words[1])

    @stop.setter
    def stop(self, value: bool) -> None:
        self._words[1] = int(value)

    @property
    def done(self) -> int:
        """Updates made; the replica writes it, as all below."""
        return self._words[2]

    @done.setter
    def done(self, value: int) -> None:
        self._words[2] = value

    @property
    def state(self) -> int:
        """What it is doing: one of STATES."""
        return self._words[3]

    @state.setter
    def state(self, value: int) -> None:
        self._words[3] = value

    @property
    def seconds_since_progress(self) -> float:
        """How long ago it last finished anything; 0 before the first time, since compiling is not hanging."""
        last = self._words[4]
        return (time.monotonic_ns() - last) / 1e9 if last else 0.0

    def progress(self) -> None:
        """Note that something was finished."""
        self._words[4] = time.monotonic_ns()

    @property
    def seconds_since_message(self) -> float:
        """How long it has waited for the same thing, while it waits."""
        return (time.monotonic_ns() - self._words[9]) / 1e9

    def exchanged(self) -> None:
        """Note that it begins to wait, or that a message was sent or taken meanwhile."""
        self._words[9] = time.monotonic_ns()

    def begin(self) -> None:
        """A new process takes this place."""
        self._words[3] = STARTING
        self._words[4] = 0
        self.exchanged()

    @property
    def presence(self) -> int:
        """HERE, or GONE, which the driver writes, or REFILLING, which a newcomer writes until it is HERE."""
        return self._words[PRESENCE]

    @presence.setter
    def presence(self, value: int) -> None:
        self._words[PRESENCE] = value

    @property
    def channel(self) -> int:
        """The channel that it waits for, while it waits."""
        return self._words[5]

    @channel.setter
    def channel(self, value: int) -> None:
        self._words[5] = value

    @property
    def sending(self) -> bool:
        """Whether it waits for room, and not for a message."""
        return bool(self._words[7])

    @sending.setter
    def sending(self, value: bool) -> None:
        self._words[7] = int(value)


def place_names(plan: Plan) -> list[tuple[int, int, str]]:
    """Fragment, number and title of every replica, in the order of their places."""
    return [(i, r, f"{f.title}/{r}") for i, f in enumerate(plan.fragments) for r in range(f.replicas)]
