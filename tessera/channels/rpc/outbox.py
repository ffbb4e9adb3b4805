"""What a replica sends to other places.

A call costs a millisecond at each end, and its reply costs nothing more. So what can wait a little travels with a
message, or with the reply to a packet.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tessera.channels.link import LinkSpec
from tessera.channels.rpc.rpc_link import LocalPayload, Payload, RpcLink
from tessera.channels.rpc.wire import Credits, LinkName, MessageHeader, Packet, Sender, encode

INLINE_BYTES = 90 * 1024
"""Smaller messages travel within the packet. Larger ones are stored once, and fetched once per node."""
PIGGYBACK_SECONDS = 0.05
"""How long a credit or params may wait for other traffic; traffic at least this frequent is worth the wait."""
NEXT_MESSAGE_SECONDS = 0.2
"""After a message to a place the next one is expected within this time, so credits for that place may wait for it."""


class Transport(Protocol):
    """Carries packets."""

    def store_payload(self, content: np.ndarray) -> Payload:
        """Put bytes where other places can fetch them."""

    def send_packet(self, place: int, data: bytes, attachments: list[Payload]) -> None:
        """Send a packet, and what does not fit into it, to a place."""

    def process_replies(self) -> None:
        """Pass replies that have arrived to their links."""


@dataclass
class EventRate:
    """When an event last happened, and how long after the one before."""

    last: float = -math.inf
    interval: float = math.inf

    def record(self, now: float) -> None:
        """Note that the event happens."""
        self.last, self.interval = now, now - self.last

    def frequent(self, now: float) -> bool:
        """Whether the event is likely to happen again soon."""
        return max(self.interval, now - self.last) <= PIGGYBACK_SECONDS


class Outbox:
    """Packets of one replica to each place: the `MessageSender` of its links.

    Two threads use it. The replica's thread sends messages and calls `flush` when it is idle; the thread that receives
    packets calls `note_packet_from` and `reply_to`. Both schedule credits and params.
    """

    def __init__(
        self,
        link_specs: dict[LinkName, LinkSpec],
        link: Callable[[LinkName], RpcLink],
        identity: Callable[[], Sender],
        transport: Transport,
        clock: Callable[[], float] = time.monotonic,
        mates: Callable[[int], tuple[int, ...]] = lambda place: (),
    ) -> None:
        """`link` gives this replica's end of a link, `identity` what its packets say of their sender, and `mates` the
        places, itself among them, whose credits the replica of a place passes on at once."""
        self._link_specs, self._link, self._identity, self._transport, self._clock = (
            link_specs,
            link,
            identity,
            transport,
            clock,
        )
        self._mates = mates
        self._lock = threading.Lock()
        self._pending_credits: dict[int, Credits] = {}
        """Place -> credits to send."""
        self._sent_credits: Credits = {}
        """What each writer knows."""
        self._pending_newest: dict[int, dict[tuple[LinkName, int], float]] = {}
        """Place -> registers whose newest message is to be sent, and since when."""
        places = {place for spec in link_specs.values() for place in spec.places}
        self._outgoing = {place: EventRate() for place in places}
        """Messages to each place."""
        self._last_to_mates: dict[tuple[int, ...], float] = {}
        """Places that pass credits on for each other -> when a message last went to one of them."""
        self._incoming = {place: EventRate() for place in places}
        """Packets from each place."""

    def make_payload(self, content: np.ndarray) -> Payload:
        """Prepare bytes for sending: large ones are stored."""
        return LocalPayload(content) if content.nbytes < INLINE_BYTES else self._transport.store_payload(content)

    def send_message(self, place: int, header: MessageHeader, payload: Payload) -> None:
        """Send a message now, and with it everything that is pending for its receiver."""
        self._send_packet(place, (header, payload))

    def schedule_newest(self, place: int, link: LinkName, reader: int) -> None:
        """Send the newest message of a register: with the reply to the next packet from there, if that is due soon."""
        now = self._clock()
        with self._lock:
            since = self._pending_newest.setdefault(place, {}).setdefault((link, reader), now)
        may_wait = self._link_specs[link].patient and now < since + PIGGYBACK_SECONDS
        if not (may_wait and self._incoming[place].frequent(now) and not self._lacks_credit(place)):
            self._send_packet(place)

    def schedule_credit(self, place: int, link: LinkName, reader: int, taken: int) -> None:
        """Send a writer what a reader has released: with other traffic, if that is due soon."""
        now = self._clock()
        with self._lock:
            self._pending_credits.setdefault(place, {})[link, reader] = taken
        urgent = self._link_specs[link].register  # only a reader that has confirmed its params gets newer ones
        if not (self._outgoing[place].frequent(now) if urgent else self._expects_traffic(place)):
            self._send_packet(place)

    def process_replies(self) -> None:
        """Pass replies that have arrived to their links."""
        self._transport.process_replies()

    def note_packet_from(self, place: int) -> None:
        """Note that a packet has come from a place."""
        self._incoming[place].record(self._clock())

    def reply_to(self, place: int) -> bytes:
        """Everything that is pending for a place; what does not fit into a reply goes as a call."""
        packet = self._make_packet(place, is_reply=True)
        if packet is None:
            return b""
        data, attachments = packet
        if not attachments:
            return data
        self._transport.send_packet(place, data, attachments)
        return b""

    def flush(self, everything: bool = False) -> bool:
        """Send what other places wait for; whether something is left that can wait a little."""
        pending = {*self._pending_credits, *self._pending_newest}
        kept = {p for p in pending if not everything and self._expects_traffic(p) and not self._lacks_credit(p)}
        for place in pending - kept:
            self._send_packet(place)
        return bool(kept)

    def _expects_traffic(self, place: int) -> bool:
        """Whether a message or a reply is likely to go to a place soon."""
        now = self._clock()
        last = max(self._outgoing[place].last, self._last_to_mates.get(self._mates(place), self._outgoing[place].last))
        return now < last + NEXT_MESSAGE_SECONDS or self._incoming[place].frequent(now)

    def _lacks_credit(self, place: int) -> bool:
        """Whether a writer with a pending credit may be blocked: it has used up its last known credit."""
        credits = list(self._pending_credits.get(place, {}))
        return any(
            not self._link_specs[link].register
            and self._link(link).sent - self._sent_credits.get((link, reader), 0) >= self._link_specs[link].capacity
            for link, reader in credits
        )

    def _send_packet(self, place: int, *messages: tuple[MessageHeader, Payload]) -> None:
        """Send messages and everything that is pending for a place."""
        packet = self._make_packet(place, *messages)
        if packet is not None:
            self._transport.send_packet(place, *packet)

    def repeat_credits(self, place: int, mates: Sequence[int]) -> None:
        """Send again what a replica that died may not have passed on to others of its node."""
        others = set(mates) - {place}
        with self._lock:
            for (link, reader), taken in self._sent_credits.items():
                spec = self._link_specs[link]
                if spec.writer in others and not spec.register:
                    self._pending_credits.setdefault(spec.writer, {}).setdefault((link, reader), taken)

    def _take_credits(self, place: int, is_reply: bool) -> Credits:
        """Credits that a packet to a place takes along: its own, and in a call those of others of its node. A replica
        passes these on as it gets a call, but looks at a reply only when it is not busy."""
        credits = self._pending_credits.pop(place, {})
        for mate in () if is_reply else self._mates(place):
            theirs = self._pending_credits.get(mate, {})
            if any(self._link_specs[link].register for link, _ in theirs):  # its writer has to act on these
                continue
            credits |= self._pending_credits.pop(mate, {})
        self._sent_credits |= credits
        return credits

    def _make_packet(
        self, place: int, *given: tuple[MessageHeader, Payload], is_reply: bool = False
    ) -> tuple[bytes, list[Payload]] | None:
        """A packet of messages and everything that is pending for a place, and the payloads that do not fit into it."""
        with self._lock:
            credits, pending = self._take_credits(place, is_reply), self._pending_newest.pop(place, {})
        newest = [self._link(link).take_newest_for(reader, place) for link, reader in pending]
        messages = [*given, *(message for message in newest if message is not None)]
        if not messages and not credits:
            return None
        if messages:
            self._outgoing[place].record(self._clock())
            if not is_reply and (mates := self._mates(place)):
                self._last_to_mates[mates] = self._clock()
        contents: list[np.ndarray | None] = []
        attachments: list[Payload] = []
        size = 0
        for _, payload in messages:
            content = payload.local()
            size += 0 if content is None else content.nbytes
            contents.append(content if size <= INLINE_BYTES else None)
            if contents[-1] is None:
                attachments.append(payload)
        packet = Packet(self._identity(), credits, tuple(header for header, _ in messages))
        return encode(packet, contents), attachments
