"""One replica's ends of all channels: what `drive` talks to, under every engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax

from tessera.channels.gradient_accumulation import GradientAccumulator
from tessera.channels.inboxes import Inbox, PeerExchange, Versions, make_inbox
from tessera.channels.link import Flow, Link
from tessera.channels.routes import Route
from tessera.graph.plan import Plan

Place = tuple[int, int | None]
"""A channel, and which peer, where each peer is dealt with by itself."""


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
        both: Callable[[int], PeerExchange | None],
    ) -> None:
        """What messages travel through: `both(channel)` if its ends are one thing, else `link(channel, lane)`."""
        self.routes, self.versions, self.number = routes, versions, number
        self.outgoing: dict[int, Link] = {}
        self.apart: dict[int, dict[int, Link]] = {}
        """Channels on which each receiver is sent to by itself: links by receiver."""
        self.inboxes: dict[int, Inbox | PeerExchange] = {}
        self.sending: dict[int, Flow] = {}
        self.muted = False
        """Whether nothing is sent, and stand-ins are received."""
        self.skipped: Counter[Place] = Counter()
        """Messages of each channel that a replica which died has sent already: its successor does not send them."""
        self.stood_in: Counter[Place] = Counter()
        """Messages of each channel that it had received already: its successor gets stand-ins."""
        self.stand_in: Callable[[int, int | None], Any] = lambda channel, peer: None
        self._offered: Counter[int] = Counter()
        """Messages of each channel that there were, sent or not."""
        self._accumulators: dict[int, GradientAccumulator] = {}
        """Channels on which several gradients are sent as one."""
        self._sizes: dict[int, int] = {}
        """Bytes of a message of each channel: all are of one size."""
        self._arrived: dict[int, dict[int, Any]] = {}
        """What peers that are dealt with by themselves have sent, where all of them are waited for."""
        self.patch: Callable[[int, Any], Any] = lambda channel, value: value
        """Changes the first value of a channel that a successor sends."""
        for k, channel in enumerate(plan.channels):
            route = routes[k]
            if channel.kind in ("shared", "collective") and fragment == channel.source and (one := both(k)) is not None:
                self.inboxes[k] = one
                continue
            if channel.kind == "shared":
                continue
            if channel.source == fragment and route.readers(number):
                links = {q: link(k, route.lane(number, q)) for q in route.readers(number)}
                if channel.apart:
                    self.apart[k] = links
                else:
                    self.outgoing[k] = next(iter(links.values()))
                self.sending[k] = Flow()
                if channel.stream == "gradients" and channel.every > 1:
                    self._accumulators[k] = GradientAccumulator(channel.every)
            if channel.target == fragment:
                links = {p: link(k, route.lane(p, number)) for p in route.writers(number)}
                self.inboxes[k] = make_inbox(route, number, links, versions)

    def send(self, channel: int, value: Any) -> bool:
        """Hand a value over; False if there is no room yet."""
        if self.muted:
            return True
        if channel in self.apart:
            return self._send_to_all(channel, value)
        if self._counted_down(self.skipped, (channel, None)):
            return True
        link = self.outgoing.get(channel)
        if link is None and channel in self.inboxes:
            return self.inboxes[channel].send(value)  # type: ignore[union-attr]
        if link is not None and channel in self._accumulators:
            return self._send_accumulated(channel, link, value)
        if link is None or not self._due(channel):  # nobody is linked to this replica, or not yet
            return True
        if not link.can_send():
            return False
        value = self.patch(channel, value)
        params = self.routes[channel].channel.stream == "params"
        link.put(value, self.versions.see(value) if params else self.versions.newest)
        self._note_sent(channel, value)
        return True

    def receive(self, channel: int) -> tuple[bool, Any]:
        """Take what has arrived: (whether it has, the value)."""
        if self.muted:
            return True, self.stand_in(channel, None)
        if self.routes[channel].channel.wait is not None:
            return self._receive_from_all(channel)
        if self._counted_down(self.stood_in, (channel, None)):
            return True, self.stand_in(channel, None)
        return self.inboxes[channel].receive()

    def peer_slices(self, channel: int) -> dict[int, slice] | None:
        """The groups of each peer that is dealt with by itself, among those of this replica."""
        route, inbox = self.routes[channel], self.inboxes[channel]
        if self.muted or route.channel.wait is None or not isinstance(inbox, Inbox) or len(inbox.links) < 2:
            return None
        mine = route.wanted(self.number)
        found = {p: [g for g in route.made(p) if g in mine] for p in inbox.links}
        return {p: slice(groups[0] - mine[0], groups[-1] - mine[0] + 1) for p, groups in found.items()}

    def batching_seconds(self, channel: int) -> float:
        """Seconds that who is ready waits for the others."""
        return self.routes[channel].channel.wait or 0.0

    def send_to(self, channel: int, peer: int, value: Any) -> bool:
        """Hand a value to one receiver; False if there is no room yet."""
        if self._counted_down(self.skipped, (channel, peer)):
            return True
        link = self.apart[channel][peer]
        if not link.can_send():
            return False
        link.put(value, self.versions.newest)
        self._note_sent(channel, value)
        return True

    def _send_accumulated(self, channel: int, link: Link, value: Any) -> bool:
        accumulator = self._accumulators[channel]
        if not accumulator.full:  # else this one is in it, and there was no room when it was
            accumulator.add(value, self.versions.newest)
        if not accumulator.full:
            return True
        if not link.can_send():
            return False
        mean, version = accumulator.take()
        link.put(mean, version)
        self._note_sent(channel, mean)
        return True

    def _note_sent(self, channel: int, value: Any) -> None:
        if channel not in self._sizes:
            self._sizes[channel] = HEADER + sum(x.nbytes for x in jax.tree.leaves(value))
        self.sending[channel].messages += 1
        self.sending[channel].bytes += self._sizes[channel]

    def receive_from(self, channel: int, peer: int) -> tuple[bool, Any]:
        """Take what one sender has sent: (whether it has, the value)."""
        if self._counted_down(self.stood_in, (channel, peer)):
            return True, self.stand_in(channel, peer)
        inbox = self.inboxes[channel]
        assert isinstance(inbox, Inbox)
        return inbox.receive_from(peer)

    def _due(self, channel: int) -> bool:
        """Whether this is one of the messages that are sent, where only every so many are."""
        every = self.routes[channel].channel.every
        self._offered[channel] += every > 1
        return self._offered[channel] % every == 0

    def _send_to_all(self, channel: int, value: Any) -> bool:
        links, route = self.apart[channel], self.routes[channel]
        if not all(link.can_send() or self.skipped[channel, q] for q, link in links.items()):
            return False
        return all(self.send_to(channel, q, route.part(self.number, q, value)) for q in links)

    def _receive_from_all(self, channel: int) -> tuple[bool, Any]:
        inbox, held = self.inboxes[channel], self._arrived.setdefault(channel, {})
        assert isinstance(inbox, Inbox)
        for p in inbox.links:
            if p not in held:
                arrived, value = self.receive_from(channel, p)
                held |= {p: value} if arrived else {}
        if len(held) < len(inbox.links):
            return False, None
        return True, inbox.route.merge(self._arrived.pop(channel))

    @staticmethod
    def _counted_down(counter: Counter[Place], place: Place) -> bool:
        """Whether one was left, which is then gone."""
        if counter[place] <= 0:
            return False
        counter[place] -= 1
        return True

    def publish(self, channel: int, value: Any) -> None:
        """Send what receivers begin with or trail behind by, before the program runs."""
        if channel in self.outgoing:
            params = self.routes[channel].channel.stream == "params"
            self.outgoing[channel].put(value, self.versions.see(value) if params else self.versions.newest)

    def exchanged(self) -> int:
        """Messages that were sent or taken, on whatever channel, since accounts were last taken."""
        flows = [*self.sending.values(), *(inbox.flow for inbox in self.inboxes.values())]
        return sum(flow.messages + flow.dropped for flow in flows)

    def waited(self, channel: int, sending: bool, seconds: float) -> None:
        """Count a wait."""
        flow = self.sending[channel] if sending and channel in self.sending else self.inboxes[channel].flow
        flow.waits += 1
        flow.wait_seconds += seconds

    def take_flows(self) -> dict[str, Flow]:
        """Accounts by stream since they were last taken; a stream's waits are of both its ends."""
        out: dict[str, Flow] = {}
        for k, inbox in self.inboxes.items():
            out.setdefault(self.routes[k].channel.stream, Flow()).merge(inbox.flow)
            inbox.flow = Flow()
        for k, flow in self.sending.items():
            mine = Flow(waits=flow.waits, wait_seconds=flow.wait_seconds, bytes=flow.bytes)
            out.setdefault(self.routes[k].channel.stream, Flow()).merge(mine)
            self.sending[k] = Flow()
        return out
