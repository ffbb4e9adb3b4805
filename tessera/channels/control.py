"""Control words: what the driver and one replica tell each other while they run, each word with one writer."""

from __future__ import annotations

import time
from collections.abc import MutableSequence
from typing import Any

STARTING, RUNNING, WAITING, IDLE = range(4)
"""STARTING also while a program is compiled: that takes as long as it takes, and is not hanging."""
STATES = ("starting", "running", "waiting", "idle")

FREE = 1 << 60
"""The limit of replicas that run at their own pace."""


CONTROL_WORDS = 16
"""Words of 64 bits for each replica."""
PRESENCE = 8
"""Which of them says whether it takes part, where others need not wait for it."""
LIFE = 10
"""Which of them says how many have been at its place, where others do not learn that otherwise."""
BY_DRIVER = (0, 1, 6)
"""Which of them only the driver writes."""


class Control:
    """The words of one replica, wherever they are kept."""

    def __init__(self, words: MutableSequence[int] | Any) -> None:
        self._words = words

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

    def set_ages(self, progress: float, exchanged: float) -> None:
        """Note how long ago both were, as the replica tells it: other machines have other clocks."""
        now = time.monotonic_ns()
        self._words[4] = now - int(progress * 1e9) if progress else 0
        self._words[9] = now - int(exchanged * 1e9)

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
