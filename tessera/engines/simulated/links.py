"""Links in virtual time: messages take a while to arrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from tessera.channels.link import LinkSpec, Message
from tessera.engines.simulated.costs import LinkCosts
from tessera.engines.simulated.virtual_time import VirtualTime


def message_bytes(spec: LinkSpec) -> int:
    """Bytes of one message of a link."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(spec.like))


class SimulatedLink:
    """A queue or register; it wakes its ends when they may look again, and has them pay for what they send and take."""

    borrowed = False

    def __init__(
        self,
        spec: LinkSpec,
        costs: LinkCosts,
        time: VirtualTime,
        wake: Callable[[int], None],
        charge: Callable[[int, float], float],
    ) -> None:
        """`wake` makes a replica look again, `charge` gives it seconds of work to do, and says how much it has to do
        in all; both know it by its place."""
        self.nbytes = message_bytes(spec)
        self.capacity = spec.capacity
        self.sent = 0
        """Messages that have arrived."""
        self._submitted = 0
        self._taken = [0] * len(spec.readers)
        self._messages: dict[int, Message] = {}
        self._spec, self._costs, self._time, self._wake, self._charge = spec, costs, time, wake, charge

    def can_send(self) -> bool:
        """Whether one more message may be sent."""
        return self._spec.register or self._submitted - min(self._taken) < self.capacity

    def put(self, value: Any, version: int) -> None:
        """Send."""
        self._messages[self._submitted] = Message(value, version)
        self._submitted += 1
        work = self._charge(self._spec.writer, self._costs.cpu_seconds(self.nbytes))
        self._time.after(work + self._costs.transit_seconds(self.nbytes), self._arrive)

    def _arrive(self) -> None:
        self.sent += 1
        if self._spec.register:
            self._messages.pop(self.sent - 2, None)
        for place in self._spec.readers:
            self._wake(place)

    def waiting(self, reader: int) -> int:
        """Messages that have arrived and that a reader has not taken yet."""
        return self.sent - self._taken[reader]

    def peek(self, reader: int, ahead: int = 0) -> Message:
        """The next message of a reader, or one after it; it must be there."""
        return self._messages[self._taken[reader] + ahead]

    def release(self, reader: int, count: int = 1) -> None:
        """Be done with messages."""
        oldest = min(self._taken)
        self._taken[reader] += count
        for number in range(oldest, min(self._taken)):
            del self._messages[number]
        self._charge(self._spec.readers[reader], count * self._costs.cpu_seconds(self.nbytes))
        self._time.after(self._costs.latency, lambda: self._wake(self._spec.writer))

    def newest(self) -> Message | None:
        """The newest message that has arrived."""
        return self._messages[self.sent - 1] if self.sent else None

    def away(self) -> bool:
        """Nobody dies in virtual time."""
        return False
