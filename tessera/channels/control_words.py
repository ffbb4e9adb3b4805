"""Control words: numbers that the driver and one replica share while they run. Each word has one writer."""

from __future__ import annotations

import time
from collections.abc import Callable, MutableSequence
from typing import Any

STARTING, RUNNING, WAITING, IDLE = range(4)
"""A replica is STARTING also while it compiles a program, which may take long and is not hanging."""
STATES = ("starting", "running", "waiting", "idle")

FREE = 1 << 60
"""The limit of replicas that run at their own pace."""


CONTROL_WORDS = 16
"""Words of 64 bits for each replica."""
PRESENCE = 8
"""The word that says whether a replica takes part, where others need not wait for it."""
LIFE = 10
"""The word that counts the processes which its place has had, where others do not learn that otherwise."""
BY_DRIVER = (0, 1, 6)
"""The words that only the driver writes."""


class Control:
    """The control words of one replica, wherever they are kept."""

    def __init__(self, words: MutableSequence[int] | Any, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """`clock` counts nanoseconds; driver and replica must use the same."""
        self._words, self._clock = words, clock

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
    def last_progress(self) -> int:
        """When it last finished anything, by the clock; 0 before the first time."""
        return self._words[4]

    @property
    def seconds_since_progress(self) -> float:
        """Seconds since it last finished anything; 0 before the first time."""
        last = self.last_progress
        return (self._clock() - last) / 1e9 if last else 0.0

    def progress(self) -> None:
        """Note that something was finished."""
        self._words[4] = self._clock()

    @property
    def seconds_since_message(self) -> float:
        """Seconds since it last sent or took a message, while it waits."""
        return (self._clock() - self._words[9]) / 1e9

    def exchanged(self) -> None:
        """Note that it begins to wait, or that a message was sent or taken meanwhile."""
        self._words[9] = self._clock()

    def set_ages(self, progress: float, exchanged: float) -> None:
        """Note both ages as the replica measured them, since other machines have other clocks."""
        now = self._clock()
        self._words[4] = now - int(progress * 1e9) if progress else 0
        self._words[9] = now - int(exchanged * 1e9)

    def begin(self) -> None:
        """A new process takes this place."""
        self._words[3] = STARTING
        self._words[4] = 0
        self.exchanged()

    @property
    def presence(self) -> int:
        """HERE; GONE, which the driver writes; or REFILLING, which a successor writes until it is HERE."""
        return self._words[PRESENCE]

    @presence.setter
    def presence(self, value: int) -> None:
        self._words[PRESENCE] = value

    @property
    def unsent(self) -> int:
        """Rows of experience that its memory kept back after its last update; they are lost if it dies."""
        return self._words[11]

    @unsent.setter
    def unsent(self, value: int) -> None:
        self._words[11] = value

    @property
    def channel(self) -> int:
        """The channel that it waits for, while it waits."""
        return self._words[5]

    @channel.setter
    def channel(self, value: int) -> None:
        self._words[5] = value

    @property
    def sending(self) -> bool:
        """Whether it waits to send, and not to receive."""
        return bool(self._words[7])

    @sending.setter
    def sending(self, value: bool) -> None:
        self._words[7] = int(value)
