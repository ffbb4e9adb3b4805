"""Links within one process: messages are passed on as they are."""

from __future__ import annotations

from collections import deque
from typing import Any

from tessera.channels.link import Message


class InProcessLink:
    """One sender's messages to its readers, in a bounded queue, or the newest of them in a register."""

    borrowed = False

    def __init__(self, readers: int, capacity: int, register: bool = False) -> None:
        self.sent = 0
        self.capacity = capacity
        self._register = register
        self._kept: deque[Message] = deque()
        self._left: list[int] = []
        """For each message that is kept, how many readers have not taken it."""
        self._first = 0
        """Number of the oldest message that is kept."""
        self._taken = [0] * readers
        self.moved = 0
        """Messages sent and taken, by which progress is seen."""

    def can_send(self) -> bool:
        """Whether one more message may be sent."""
        return self._register or len(self._kept) < self.capacity

    def put(self, value: Any, version: int) -> None:
        """Send."""
        if self._register:
            self._forget()
        self._kept.append(Message(value, version))
        self._left.append(len(self._taken))
        self.sent += 1
        self.moved += 1

    def waiting(self, reader: int) -> int:
        """Messages that a reader has not taken yet."""
        return self.sent - self._taken[reader]

    def peek(self, reader: int, ahead: int = 0) -> Message:
        """The next message of a reader, or one after it; it must be there."""
        return self._kept[self._taken[reader] + ahead - self._first]

    def release(self, reader: int, count: int = 1) -> None:
        """Be done with messages."""
        begin = self._taken[reader] - self._first
        for k in range(begin, begin + count):
            self._left[k] -= 1
        self._taken[reader] += count
        self.moved += count
        while self._left and not self._left[0]:
            self._kept.popleft()
            del self._left[0]
            self._first += 1

    def newest(self) -> Message | None:
        """The newest message, if there ever was one."""
        return self._kept[-1] if self._kept else None

    def under_way(self) -> list[Message]:
        """Messages that some reader has not taken yet."""
        return list(self._kept)

    def clear(self) -> None:
        """Forget what is under way."""
        self._forget()
        self._taken = [self.sent] * len(self._taken)

    def _forget(self) -> None:
        self._kept.clear()
        self._left.clear()
        self._first = self.sent

    def away(self) -> bool:
        """All ends are in this process, so none can be down alone."""
        return False
