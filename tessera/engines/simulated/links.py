"""Links in virtual time: messages take a while to arrive, and those between nodes pass their network cards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax

from tessera.channels.link import LinkSpec, Message
from tessera.channels.rpc.outbox import INLINE_BYTES, EventRate
from tessera.engines.simulated.costs import LinkCosts
from tessera.engines.simulated.network import NetworkCard, transmit
from tessera.engines.simulated.tokens import there
from tessera.engines.simulated.virtual_time import Event, VirtualTime

Charge = Callable[[int, float, str], float]
"""Gives a replica, by its place, seconds of work to do with an exchange, by its name (empty: of no matter); how much it
has to do in all."""


def message_bytes(shape: Any) -> int:
    """Bytes of a message of this shape."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shape))


@dataclass(eq=False, kw_only=True)
class LinkEnd:
    """The readers of a link on one node, as they and the writer see the link."""

    link: SimulatedLink = field(init=False, repr=False)
    places: tuple[int, ...]
    """Of its readers."""
    capacity: int
    """Messages that may be in flight."""
    costs: LinkCosts
    cards: tuple[NetworkCard, NetworkCard] | None = None
    """Of the writer's node and of this one, if they are two."""
    copies_sent: float = 1.0
    """Messages of one writer that one of these stands for, summed over readers."""
    copies_received: float = 1.0
    """Messages to one reader that one of these stands for."""
    remote: float = 1.0
    """Share of them that go to other nodes."""
    shared: bool = False
    """Whether the readers share what comes to their node: it is sent to one of them, or to none on the writer's own
    (decision 0121)."""
    relay: int = -1
    """The place of the reader that it is sent to."""
    sent: int = 0
    """Messages that have arrived."""
    on_the_way: bool = False
    """Whether a message of a register is: there is one at the most."""
    arrived: Message | None = None
    """The newest of a register."""
    borrowed: bool = False

    def can_send(self) -> bool:
        """Whether one more message may be sent."""
        return self.link.can_send()

    def put(self, value: Any, version: int) -> None:
        """Send."""
        self.link.put(value, version)

    def waiting(self, reader: int) -> int:
        """Messages that have arrived and that a reader has not taken yet."""
        return self.sent - self.link.taken[reader]

    def peek(self, reader: int, ahead: int = 0) -> Message:
        """The next message of a reader, or one after it; it must be there."""
        return self.link.messages[self.link.taken[reader] + ahead]

    def release(self, reader: int, count: int = 1) -> None:
        """Be done with messages."""
        self.link.release(self, reader, count)

    def newest(self) -> Message | None:
        """The newest message that has arrived."""
        if self.link.register:
            return self.arrived
        return self.link.messages[self.sent - 1] if self.sent else None

    def away(self) -> bool:
        """Nobody dies in virtual time."""
        return False

    def deliver(self, time: VirtualTime, ready: float, nbytes: int, times: float, then: Event) -> None:
        """Have a message that is ready at a time arrive, and then call; it stands for so many in a row."""
        ready += self.costs.transit_seconds(nbytes)
        if self.cards is None:
            return time.after(ready - time.now, then)
        # what is shared or large comes once to each node, whatever the number of its readers
        readers = 1 if self.shared or nbytes >= INLINE_BYTES else len(self.places)
        sent = times * self.remote * self.copies_sent * nbytes * readers / len(self.places)
        received = times * self.remote * self.copies_received * nbytes * readers
        return transmit(time, *self.cards, sent, received, ready, then)

    @property
    def packets(self) -> float:
        """Packets of one writer that one message of these stands for."""
        return self.remote * self.copies_sent / len(self.places) if self.shared else self.copies_sent

    def receiving_seconds(self, place: int, nbytes: int, local: float) -> tuple[float, float]:
        """Work of a reader on a message that came from another node, and on one that it found in memory; `local` is
        what that takes."""
        if not self.shared:
            return self.costs.cpu_seconds(nbytes), 0.0
        if place == self.relay:
            return self.remote * self.costs.cpu_seconds(nbytes), (1.0 - self.remote) * local
        return 0.0, local

    @property
    def latency(self) -> float:
        """Seconds that the smallest message takes back."""
        return self.costs.latency + (0.0 if self.cards is None else max(card.latency for card in self.cards))


@dataclass(frozen=True)
class LinkWork:
    """What a message of a link within a machine is to its two ends, in seconds."""

    sending: str
    """The name of the exchange at the writer's end."""
    send: float
    receiving: str
    receive: dict[int, float]
    """Place of a reader -> its work."""


class SimulatedLink:
    """A queue or register; it wakes its ends when they may look again, and has them pay for what they send and take."""

    def __init__(
        self,
        spec: LinkSpec,
        nbytes: int,
        stands_for: float,
        publications: float,
        work: LinkWork,
        ends: dict[int, LinkEnd],
        time: VirtualTime,
        wake: Callable[[int], None],
        charge: Charge,
        rates: defaultdict[int, EventRate],
    ) -> None:
        """`stands_for` is of the writer, `publications` are of each gradient that a message of a register stands for,
        `ends` are by node, `wake` makes a replica look again, by its place, and
        `rates` are of messages that each place sends."""
        self._rates, self._work = rates, work
        self._stands_for, self._publications = stands_for, publications
        self.nbytes, self.ends, self.register, self.capacity = nbytes, ends, spec.register, spec.capacity
        self.messages: dict[int, Message] = {}
        self.taken = [0] * len(spec.readers)
        self._submitted = 0
        self._first = 0
        """The oldest message that a reader has not taken."""
        self._left: dict[int, int] = {}
        """Message -> readers that have not taken it."""
        self._spec, self._time, self._wake, self._charge = spec, time, wake, charge
        for end in ends.values():
            end.link = self

    def end_at(self, node: int) -> LinkEnd:
        """What a replica on a node reads or writes it through."""
        return self.ends.get(node) or next(iter(self.ends.values()))

    def can_send(self) -> bool:
        """Whether one more message may be sent."""
        return self.register or self._submitted - self._first < self.capacity

    def put(self, value: Any, version: int) -> None:
        """Send."""
        number, message = self._submitted, Message(there(value), version)
        self._submitted += 1
        self._rates[self._spec.writer].record(self._time.now)
        if self.register:
            self.messages = {number: message}
        else:
            self.messages[number], self._left[number] = message, len(self.taken)
        due = [end for end in self.ends.values() if not (self.register and end.on_the_way and end.cards)]
        self._send(due, number, message)

    def _send(self, ends: list[LinkEnd], number: int, message: Message) -> None:
        """Send to some of the ends; the newest params may stand for all that were published since the last."""
        gradients = message.value.stands_for / self._stands_for
        times = max(1.0, gradients * self._publications) if self.register else 1.0
        ready = self._time.now + self._pay(ends, times)
        for end in ends:
            end.on_the_way = True
            end.deliver(self._time, ready, self.nbytes, times, partial(self._arrive, end, number, message))

    def _pay(self, ends: list[LinkEnd], times: float) -> float:
        """Have the writer work on a message: once within its node, and for each packet; what it owes in all."""
        costs = next((end.costs for end in self.ends.values() if end.cards), next(iter(self.ends.values())).costs)
        if all(end.cards is None for end in self.ends.values()):
            return self._charge(self._spec.writer, times * self._work.send, self._work.sending)
        if any(end.shared and end.remote < 1 for end in ends):
            self._charge(self._spec.writer, times * self._work.send, self._work.sending)
        calls = sum(end.packets for end in ends if not self._answers(end))
        packets = sum(end.packets for end in ends)
        stored = min(1.0, packets) if self.nbytes >= INLINE_BYTES else packets
        work = calls * costs.cpu_per_message + stored * self.nbytes * costs.cpu_per_byte
        return self._charge(self._spec.writer, times * work, "")

    def _answers(self, end: LinkEnd) -> bool:
        """Whether params travel with replies, which take no call, since the readers send messages often enough."""
        now = self._time.now
        places = (end.relay,) if end.shared else end.places
        return self.register and self._spec.patient and all(self._rates[place].frequent(now) for place in places)

    def _arrive(self, end: LinkEnd, number: int, message: Message) -> None:
        end.on_the_way = False
        end.sent = number + 1
        if self.register:
            end.arrived = message
            if end.cards:
                call = 0.0 if self._answers(end) else end.costs.cpu_per_message
                for place in (end.relay,) if end.shared else end.places:
                    self._charge(place, call + self.nbytes * end.costs.cpu_per_byte, "")
                if number + 1 < self._submitted:  # newer ones were published meanwhile: the newest is next
                    newest = self._submitted - 1
                    self._send([end], newest, self.messages[newest])
        for place in end.places:
            self._wake(place)

    def release(self, end: LinkEnd, reader: int, count: int) -> None:
        """A reader is done with messages."""
        full = not self.can_send()
        for number in range(self.taken[reader], self.taken[reader] + count):
            self._left[number] -= 1
            if not self._left[number]:
                del self._left[number], self.messages[number]
        self.taken[reader] += count
        while self._first < self._submitted and self._first not in self._left:
            self._first += 1
        place, copies = self._spec.readers[reader], count * end.copies_received
        if all(other.cards is None for other in self.ends.values()):
            owed = self._charge(place, copies * self._work.receive[place], self._work.receiving)
        else:
            remote, local = end.receiving_seconds(place, self.nbytes, self._work.receive[place])
            owed = self._charge(place, copies * remote, "")
            if local:
                owed = self._charge(place, copies * local, self._work.receiving)
        if full and self.can_send():  # once the reader has done what it owes: params that it sent before come first
            self._time.after(owed + end.latency, lambda: self._wake(self._spec.writer))
