"""One replica's ends of all channels: what `drive` talks to, under every engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from tessera.engines.channels.base import Flow, Link, Vector
from tessera.engines.inbox import Inbox, Shared, Versions, make_inbox
from tessera.engines.routes import Route
from tessera.graph.plan import Plan


class Port:
    """Sends and receives for one replica of one fragment."""

    def __init__(
        self,
        plan: Plan,
        routes: list[Route],
        fragment: int,
        number: int,
        versions: Versions,
        link: Callable[[int, int], Link],
        vector: Callable[[int], Vector],
    ) -> None:
        """`link(channel, sender)` and `vector(channel)` give what messages travel through."""
        self.routes, self.versions = routes, versions
        self.outgoing: dict[int, Link] = {}
        self.inboxes: dict[int, Inbox | Shared] = {}
        self.sending: dict[int, Flow] = {}
        self.muted = False
        """Whether nothing is sent, and stand-ins are received."""
        self.skipped: Counter[int] = Counter()
        """Messages of each channel that a replica which died has sent already: its successor does not send them."""
        self.stood_in: Counter[int] = Counter()
        """Messages of each channel that it had received already: its successor gets stand-ins."""
        self.stand_in: Callable[[int], Any] = lambda channel: None
        self.patch: Callable[[int, Any], Any] = lambda channel, value: value
        """Changes the first value of a channel that a successor sends."""
        for k, channel in enumerate(plan.channels):
            route = routes[k]
            if channel.kind == "shared":
                if fragment == channel.source:
                    self.inboxes[k] = Shared(vector(k))
                continue
            if channel.source == fragment and route.readers(number):
                self.outgoing[k] = link(k, number)
                self.sending[k] = Flow()
            if channel.target == fragment:
                links = {p: link(k, p) for p in route.writers(number)}
                self.inboxes[k] = make_inbox(route, number, links, versions)

    def send(self, channel: int, value: Any) -> bool:
        """Hand a value over; False if there is no room yet."""
        if self.muted:
            return True
        if self.skipped[channel]:
            self.skipped[channel] -= 1
            return True
        both = self.inboxes.get(channel)
        if isinstance(both, Shared):
            return both.send(value)
        link = self.outgoing.get(channel)
        if link is None:  # nobody is linked to this replica
            return True
        if not link.room():
            return False
        value = self.patch(channel, value)
        params = self.routes[channel].channel.stream == "params"
        link.put(value, self.versions.see(value) if params else self.versions.newest)
        self.sending[channel].messages += 1
        return True

    def receive(self, channel: int) -> tuple[bool, Any]:
        """Take what has arrived: (whether it has, the value)."""
        if self.muted:
            return True, self.stand_in(channel)
        if self.stood_in[channel]:
            self.stood_in[channel] -= 1
            return True, self.stand_in(channel)
        return self.inboxes[channel].receive()

    def publish(self, channel: int, value: Any) -> None:
        """Send what receivers begin with or trail behind by, before the program runs."""
        if channel in self.outgoing:
            params = self.routes[channel].channel.stream == "params"
            self.outgoing[channel].put(value, self.versions.see(value) if params else self.versions.newest)

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
            waits = Flow(waits=flow.waits, wait_seconds=flow.wait_seconds)
            out.setdefault(self.routes[k].channel.stream, Flow()).merge(waits)
            self.sending[k] = Flow()
        return out
