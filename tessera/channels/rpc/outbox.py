"""What a replica sends to others. A call takes a millisecond at each end, an answer to one nothing more: so what can
wait a little goes with a message, or back with the answer to one.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tessera.channels.link import LinkSpec
from tessera.channels.rpc.link import LocalPayload, Payload, RpcLink
from tessera.channels.rpc.wire import Credits, MessageHeader, Name, Packet, Sender, encode

INLINE_BYTES = 90 * 1024
"""Messages of less are sent with the call; others are put into the object store once, and fetched once per node."""
OFTEN_SECONDS = 0.05
"""What goes to somebody, or comes from there, at least so often may soon take more with it; so long that may wait."""
AGAIN_SECONDS = 0.2
"""Who was sent a message so long ago at the most will be sent another, and may be told then what one is done with."""


class Transport(Protocol):
    """What letters go by."""

    def store(self, content: np.ndarray) -> Payload:
        """Lay bytes down where others can fetch them."""

    def carry(self, place: int, data: bytes, attachments: list[Payload]) -> None:
        """Bring a packet, and what does not fit into it, to a place."""

    def collect(self) -> None:
        """Open answers that have come."""


@dataclass
class Pace:
    """When something happened last, and how long after the time before."""

    last: float = -math.inf
    interval: float = math.inf

    def note(self, now: float) -> None:
        """It happens."""
        self.last, self.interval = now, now - self.last

    def often(self, now: float) -> bool:
        """Whether it is likely to happen again soon."""
        return max(self.interval, now - self.last) <= OFTEN_SECONDS


class Outbox:
    """The post of one replica, by place. Its thread uses it, and the one that gets post."""

    def __init__(
        self,
        link_specs: dict[Name, LinkSpec],
        link: Callable[[Name], RpcLink],
        sender: Callable[[], Sender],
        carrier: Transport,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`link` gives this replica's end of a link, `sender` who it is by now."""
        self._link_specs, self._link, self._sender, self._carrier, self._clock = (
            link_specs,
            link,
            sender,
            carrier,
            clock,
        )
        self._lock = threading.Lock()
        self._credits: dict[int, Credits] = {}
        """What others have to be told that this replica is done with."""
        self._told: Credits = {}
        """What they were told."""
        self._offers: dict[int, dict[tuple[Name, int], float]] = {}
        """Registers of which readers may get the newest, since when."""
        places = {place for spec in link_specs.values() for place in spec.places}
        self._sent = {place: Pace() for place in places}
        """Messages to others."""
        self._heard = {place: Pace() for place in places}
        """Letters from others."""

    def payload(self, content: np.ndarray) -> Payload:
        """Make bytes ready to be sent: they are laid down if they are too many for a packet."""
        return LocalPayload(content) if content.nbytes < INLINE_BYTES else self._carrier.store(content)

    def deliver(self, place: int, header: MessageHeader, payload: Payload) -> None:
        """Send a message, and with it all that its receiver waits for or is credits."""
        self._settle(place, (header, payload))

    def offer(self, place: int, name: Name, reader: int) -> None:
        """Send the newest of a register: with the answer to the receiver's next packet, if that is likely soon."""
        now = self._clock()
        with self._lock:
            since = self._offers.setdefault(place, {}).setdefault((name, reader), now)
        waits = self._link_specs[name].patient and now < since + OFTEN_SECONDS
        if not (waits and self._heard[place].often(now) and not self._waited_by(place)):
            self._settle(place)

    def credit(self, place: int, name: Name, reader: int, taken: int) -> None:
        """Tell a writer how many messages a reader is done with: with something else, if that is likely soon."""
        now = self._clock()
        with self._lock:
            self._credits.setdefault(place, {})[name, reader] = taken
        urgent = self._link_specs[name].register  # only who has told that it got params gets newer ones
        if not (self._sent[place].often(now) if urgent else self._meets_soon(place)):
            self._settle(place)

    def collect(self) -> None:
        """Open answers that have come."""
        self._carrier.collect()

    def hear(self, place: int) -> None:
        """A packet has come from somebody."""
        self._heard[place].note(self._clock())

    def answer(self, place: int) -> bytes:
        """All that there is for somebody who has sent a packet; what does not fit into an answer goes by itself."""
        packet = self._write(place)
        if packet is None:
            return b""
        data, attachments = packet
        if not attachments:
            return data
        self._carrier.carry(place, data, attachments)
        return b""

    def clear(self, everything: bool = False) -> bool:
        """Send what others wait for, as the replica has nothing to do; whether there is more that can wait a little."""
        waiting = {*self._credits, *self._offers}
        kept = {p for p in waiting if not everything and self._meets_soon(p) and not self._waited_by(p)}
        for place in waiting - kept:
            self._settle(place)
        return bool(kept)

    def _meets_soon(self, place: int) -> bool:
        """Whether somebody is likely to be sent a message or an answer soon."""
        now = self._clock()
        return now < self._sent[place].last + AGAIN_SECONDS or self._heard[place].often(now)

    def _waited_by(self, place: int) -> bool:
        """Whether somebody that is credits something may wait for it: by what it was told, it can send no more."""
        credits = list(self._credits.get(place, {}))
        return any(
            not self._link_specs[name].register
            and self._link(name).sent - self._told.get((name, reader), 0) >= self._link_specs[name].capacity
            for name, reader in credits
        )

    def _settle(self, place: int, *messages: tuple[MessageHeader, Payload]) -> None:
        """Send messages to somebody, and all else that there is for it."""
        packet = self._write(place, *messages)
        if packet is not None:
            self._carrier.carry(place, *packet)

    def _write(self, place: int, *given: tuple[MessageHeader, Payload]) -> tuple[bytes, list[Payload]] | None:
        """Messages to somebody and all else that there is for it, data, and what does not fit into the packet."""
        with self._lock:
            credits, offers = self._credits.pop(place, {}), self._offers.pop(place, {})
            self._told |= credits
        newest = [self._link(name).newest_for(reader) for name, reader in offers]
        messages = [*given, *(message for message in newest if message is not None)]
        if not messages and not credits:
            return None
        if messages:
            self._sent[place].note(self._clock())
        inside: list[np.ndarray | None] = []
        attachments: list[Payload] = []
        size = 0
        for _, payload in messages:
            content = payload.here()
            size += 0 if content is None else content.nbytes
            inside.append(content if size <= INLINE_BYTES else None)
            if inside[-1] is None:
                attachments.append(payload)
        packet = Packet(self._sender(), credits, tuple(header for header, _ in messages))
        return encode(packet, inside), attachments
