"""One replica's ends of all channels: what the program exchanges values through, under every engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from tessera.channels.gradient_accumulation import Accumulator
from tessera.channels.inboxes import Inbox, PeerExchange, Versions, make_inbox
from tessera.channels.link import Flow, Link
from tessera.channels.routes import Route
from tessera.graph.disciplines import Shared, Sync, every_of
from tessera.graph.plan import Plan

HEADER = 16
"""Bytes of a message's number and version."""


class ReplicaPort:
    """Sends and receives for one replica of one fragment."""

    def __init__(
        self,
        plan: Plan,
        routes: list[Route],
        fragment: int,
        number: int,
        versions: Versions,
        link: Callable[[int, int], Link],
        peer_exchange: Callable[[int], PeerExchange | None],
    ) -> None:
        """A channel uses `peer_exchange(channel)` if both of its ends are one thing, else `link(channel, lane)`."""
        self.routes, self.versions, self.number = routes, versions, number
        self.outgoing: dict[int, Link] = {}
        self.per_receiver: dict[int, dict[int, Link]] = {}
        """Channels on which each receiver has a link of its own: links by receiver."""
        self.inboxes: dict[int, Inbox] = {}
        self.exchanges: dict[int, PeerExchange] = {}
        self.sending: dict[int, Flow] = {}
        self._offered: Counter[int] = Counter()
        """Messages of each channel that there were, sent or not."""
        self._accumulators: dict[int, Accumulator] = {}
        """Channels on which several gradients are sent as one."""
        self._sizes: dict[int, int] = {}
        """Bytes of a message of each channel: all are of one size."""
        self._every = [every_of(route.channel.discipline) for route in routes]
        """How many messages of each channel make one that is sent."""
        self._batching = [_batching(route) for route in routes]
        self._arrived: dict[int, dict[int, Any]] = {}
        """What senders that are waited for one by one have sent, where all of them are waited for in the end."""
        for k, channel in enumerate(plan.channels):
            if fragment not in (channel.source, channel.target):
                continue
            exchange = peer_exchange(k) if channel.among_peers else None
            if exchange is not None:
                self.exchanges[k] = exchange
            elif not isinstance(channel.discipline, Shared):
                self._open(k, fragment, link, versions)
        self._receiving: dict[int, Inbox | PeerExchange] = {**self.inboxes, **self.exchanges}

    def _open(self, k: int, fragment: int, link: Callable[[int, int], Link], versions: Versions) -> None:
        """Open this replica's ends of the links of one channel."""
        route, number = self.routes[k], self.number
        channel = route.channel
        if channel.source == fragment and (readers := route.readers(number)):
            if channel.link_per_receiver:
                self.per_receiver[k] = {q: link(k, route.lane(number, q)) for q in readers}
            else:
                self.outgoing[k] = link(k, route.lane(number, readers[0]))
            self.sending[k] = Flow()
            if channel.stream == "gradients" and self._every[k] > 1:
                self._accumulators[k] = route.values.accumulator(self._every[k])
        if channel.target == fragment:
            links = {p: link(k, route.lane(p, number)) for p in route.writers(number)}
            self.inboxes[k] = make_inbox(route, number, links, versions)

    # What the program calls.

    def send(self, channel: int, value: Any) -> bool:
        """Hand a value over; False if it has to wait."""
        if channel in self.per_receiver:
            return self.send_to_each(channel, value, self.can_send_to, self.send_to)
        if channel in self.exchanges:
            return self.exchanges[channel].send(value)
        link = self.outgoing.get(channel)
        if link is None:  # no replica is linked to this one
            self._note_version(channel, value)
            return True
        if channel in self._accumulators:
            return self._send_accumulated(channel, link, value)
        if not self._is_due(channel):
            return True
        if not link.can_send():
            return False
        self.put(channel, value)
        return True

    def receive(self, channel: int) -> tuple[bool, Any]:
        """Take what has arrived: (whether it has, the value)."""
        if channel in self.exchanges:
            return self.exchanges[channel].receive()
        if self._batching[channel] is not None:
            return self.receive_from_each(channel, self.receive_from)
        return self.inboxes[channel].receive()

    def peer_slices(self, channel: int) -> dict[int, slice] | None:
        """Groups of each sender among those of this replica, where ready senders are answered without the others."""
        inbox = self.inboxes.get(channel)
        if inbox is None or self._batching[channel] is None or len(inbox.links) < 2:
            return None
        route, first = inbox.route, inbox.route.wanted(self.number)[0]
        held = {p: [route.made(p)[k] for k in route.common(p, self.number)] for p in inbox.links}
        return {p: slice(groups[0] - first, groups[-1] - first + 1) for p, groups in held.items()}

    def batching_seconds(self, channel: int) -> float:
        """Seconds that ready senders wait for the others."""
        return self._batching[channel] or 0.0

    def send_to(self, channel: int, receiver: int, value: Any) -> bool:
        """Hand a value to one receiver; False if it has to wait."""
        link = self.per_receiver[channel][receiver]
        if not link.can_send():
            return False
        link.put(value, self.versions.newest)
        self._count_sent(channel, value)
        return True

    def receive_from(self, channel: int, sender: int) -> tuple[bool, Any]:
        """Take what one sender has sent: (whether it has arrived, the value)."""
        return self.inboxes[channel].receive_from(sender)

    # What those are made of, and what a takeover wraps.

    def can_send_to(self, channel: int, receiver: int) -> bool:
        """Whether one more message may be sent to one receiver."""
        return self.per_receiver[channel][receiver].can_send()

    def send_to_each(
        self,
        channel: int,
        value: Any,
        can_send_to: Callable[[int, int], bool],
        send_to: Callable[[int, int, Any], bool],
    ) -> bool:
        """Hand each receiver its part; to none while one of them has to wait."""
        receivers, route = self.per_receiver[channel], self.routes[channel]
        if not all(can_send_to(channel, q) for q in receivers):
            return False
        return all(send_to(channel, q, route.part(self.number, q, value)) for q in receivers)

    def receive_from_each(self, channel: int, receive_from: Callable[[int, int], tuple[bool, Any]]) -> tuple[bool, Any]:
        """Take the parts of all senders as they arrive, and merge them once all are there."""
        inbox, held = self.inboxes[channel], self._arrived.setdefault(channel, {})
        for p in inbox.links:
            if p not in held:
                arrived, value = receive_from(channel, p)
                held |= {p: value} if arrived else {}
        if len(held) < len(inbox.links):
            return False, None
        return True, inbox.route.merge(self._arrived.pop(channel))

    def put(self, channel: int, value: Any) -> None:
        """Send now: there must be room."""
        self._note_version(channel, value)
        self.outgoing[channel].put(value, self.versions.newest)
        self._count_sent(channel, value)

    def publish(self, channel: int, value: Any) -> None:
        """Send what receivers begin with or trail behind by, before the program runs; it is not counted."""
        if channel in self.outgoing:
            self._note_version(channel, value)
            self.outgoing[channel].put(value, self.versions.newest)

    def _note_version(self, channel: int, value: Any) -> None:
        """Know of params that this replica has made, whether or not another one is linked to it."""
        route = self.routes[channel]
        if route.channel.stream == "params":
            self.versions.newest = route.values.version(value)

    def _send_accumulated(self, channel: int, link: Link, value: Any) -> bool:
        accumulator = self._accumulators[channel]
        if not accumulator.full:  # else this gradient is in it already, and had to wait
            accumulator.add(value, self.versions.newest)
        if not accumulator.full:
            return True
        if not link.can_send():
            return False
        mean, version = accumulator.take()
        link.put(mean, version)
        self._count_sent(channel, mean)
        return True

    def _is_due(self, channel: int) -> bool:
        """Whether this is one of the messages that are sent, where only every so many are."""
        every = self._every[channel]
        if every == 1:
            return True
        self._offered[channel] += 1
        return self._offered[channel] % every == 0

    # Accounts.

    def _count_sent(self, channel: int, value: Any) -> None:
        if channel not in self._sizes:
            self._sizes[channel] = HEADER + self.routes[channel].values.nbytes(value)
        self.sending[channel].messages += 1
        self.sending[channel].bytes += self._sizes[channel]

    def exchanged(self) -> int:
        """Messages that were sent or taken, on whatever channel, since accounts were last taken."""
        flows = [*self.sending.values(), *(end.flow for end in self._receiving.values())]
        return sum(flow.messages + flow.dropped for flow in flows)

    def waited(self, channel: int, sending: bool, seconds: float) -> None:
        """Count a wait."""
        flow = self.sending[channel] if sending and channel in self.sending else self._receiving[channel].flow
        flow.waits += 1
        flow.wait_seconds += seconds

    def take_flows(self) -> dict[str, Flow]:
        """Accounts by stream since they were last taken; a stream's waits are of both its ends."""
        out: dict[str, Flow] = {}
        for k, end in self._receiving.items():
            out.setdefault(self.routes[k].channel.stream, Flow()).merge(end.flow)
            end.flow = Flow()
        for k, flow in self.sending.items():
            mine = Flow(waits=flow.waits, wait_seconds=flow.wait_seconds, bytes=flow.bytes)
            out.setdefault(self.routes[k].channel.stream, Flow()).merge(mine)
            self.sending[k] = Flow()
        return out


def _batching(route: Route) -> float | None:
    """Seconds that ready senders wait for the others; None if all are waited for."""
    match route.channel.discipline:
        case Sync(batching=seconds):
            return seconds
        case _:
            return None
