"""Links: one sender's messages to its readers, whatever they travel through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable


class Message(NamedTuple):
    """A value, and the version of the params that it was made with (gradients applied)."""

    value: Any
    version: int


class Link(Protocol):
    """One sender's messages to its readers, numbered from 0. Each reader takes each message once, in order."""

    capacity: int
    borrowed: bool
    """Whether a message's memory is reused once it is released, so that a value which outlives it must be copied."""

    @property
    def sent(self) -> int:
        """Messages so far."""

    def can_send(self) -> bool:
        """Whether one more message may be sent."""

    def put(self, value: Any, version: int) -> None:
        """Send."""

    def waiting(self, reader: int) -> int:
        """Messages that a reader has not taken yet."""

    def peek(self, reader: int, ahead: int = 0) -> Message:
        """The next message of a reader, or one after it; it must be there. Valid until it is released."""

    def release(self, reader: int, count: int = 1) -> None:
        """Be done with messages."""

    def newest(self) -> Message | None:
        """A copy of the newest message, if there ever was one."""

    def away(self) -> bool:
        """Whether the sender is down for now, so that no reader need wait for it."""


@runtime_checkable
class DurableLink(Link, Protocol):
    """A link whose state outlives the processes at its ends, so that a successor finds how far its predecessor came."""

    like: Any
    """A message, in shape."""

    def taken(self, reader: int) -> int:
        """Messages that a reader is done with."""

    def at(self, number: int) -> Any:
        """Copy a message that is still there, by its number; None if it is not."""

    def skip(self, reader: int) -> None:
        """Be done with all that a reader has not taken yet."""


class Straggler:
    """Finds one of several that is behind, and looks at that one first the next time.

    Who waits for all asks again and again. Until nobody is behind, each is looked at twice at the most.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers, self._position = numbers, 0

    def exists(self, is_behind: Callable[[int], bool]) -> bool:
        """Whether any of them is behind."""
        for _ in self._numbers:
            if is_behind(self._numbers[self._position]):
                return True
            self._position = (self._position + 1) % len(self._numbers)
        return False


HERE, REFILLING, GONE = range(3)
"""Whether a replica takes part, where others need not wait for it."""
NOT_WAITED_FOR = {"experience": GONE, "priorities": REFILLING}
"""Stream -> from which presence on a reader of it is not waited for."""


@dataclass(frozen=True, kw_only=True)
class LinkSpec:
    """What travels along one link, and between which places, whatever it is made of."""

    like: Any
    """A message, in shape."""
    readers: tuple[int, ...]
    """Places of the replicas that read it."""
    writer: int
    """Place of the replica that writes it."""
    capacity: int
    """Messages that may be in flight."""
    register: bool = False
    """Whether only the newest message counts."""
    absent: int | None = None
    """From which presence on a reader is not waited for; None: every reader is."""
    needed: bool = False
    """Whether at least one reader must get each message: while all are absent, the sender waits."""
    patient: bool = False
    """Whether a message may wait a little to travel with another one: no replica waits for it."""

    def waited_for(self, presence: Callable[[int], int]) -> list[int]:
        """Readers that take part, so that they get every message and are waited for."""
        return [r for r, place in enumerate(self.readers) if self.absent is None or presence(place) < self.absent]

    def can_send(self, sent: int, taken: Callable[[int], int], presence: Callable[[int], int]) -> bool:
        """Whether one more message may be sent, by what each reader is done with and which readers take part."""
        waited = self.waited_for(presence)
        if self.needed and not waited:
            return False
        return all(sent - taken(r) < self.capacity for r in waited)

    @property
    def slots(self) -> int:
        """Messages that are kept: one more than may be in flight, so that a successor finds the last one taken."""
        return max(2, self.capacity + 1)

    @property
    def places(self) -> tuple[int, ...]:
        """Places at either end."""
        return (self.writer, *self.readers)


@dataclass
class Flow:
    """What went through one end of a channel since it was last asked."""

    messages: int = 0
    dropped: int = 0
    """Messages that were older than the bound on lag allows."""
    lag_sum: float = 0.0
    """Updates by which what arrived trailed behind the newest params, summed over messages."""
    lag_max: float = 0.0
    lags: int = 0
    fill: float = 0.0
    """How full the queue was, from 0 to 1, summed over messages."""
    waits: int = 0
    wait_seconds: float = 0.0
    bytes: int = 0
    """Bytes sent, headers included; counted once, however many readers there are."""

    def note_lag(self, updates: float) -> None:
        """Count one message's lag."""
        self.lag_sum += updates
        self.lag_max = max(self.lag_max, updates)
        self.lags += 1

    @property
    def lag_mean(self) -> float:
        """Mean lag of the messages whose lag is known; 0 if there are none."""
        return self.lag_sum / self.lags if self.lags else 0.0

    def merge(self, other: Flow) -> None:
        """Add another end's account."""
        for name in ("messages", "dropped", "lag_sum", "lags", "fill", "waits", "wait_seconds", "bytes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.lag_max = max(self.lag_max, other.lag_max)
