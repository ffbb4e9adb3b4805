"""How a replica takes what arrives: one class for each discipline; whatever the links are made of."""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

import jax

from tessera.channels.link import Flow, Link, Message, SharedValue
from tessera.channels.routes import Route
from tessera.program.exchange import instead


class Versions:
    """What a replica knows of the params' age, and how it counts lag."""

    def __init__(self, applies: int, messages: int, known: bool = True) -> None:
        self.known = known
        """Whether params ever come here; a store by itself cannot tell how old experience is."""
        self.newest = 0
        """The newest version that this replica has published or received, in gradients applied."""
        self.applies = applies
        """Gradients applied in one update."""
        self.messages = messages
        """Messages that carry a view to `grad` in one update."""

    def see(self, value: Any) -> int:
        """Note the version of params that were published or received."""
        self.newest = int(value.clock.applies)
        return self.newest


class Inbox:
    """One replica's end of an incoming channel. The plain one is synchronous: a message from each sender, in order."""

    def __init__(self, route: Route, q: int, links: dict[int, Link], versions: Versions) -> None:
        self.route, self.q, self.links, self.versions = route, q, links, versions
        self.reader = {p: 0 if route.channel.apart else route.readers(p).index(q) for p in links}
        self.flow = Flow()

    def receive(self) -> tuple[bool, Any]:
        """Take what is due: (whether it has arrived, the value)."""
        if not all(link.waiting(self.reader[p]) for p, link in self.links.items()):
            return False, None
        messages = {p: link.peek(self.reader[p]) for p, link in self.links.items()}
        value = self.route.merge({p: self.route.taken(p, self.q, m.value) for p, m in messages.items()})
        if len(messages) == 1:
            value = next(iter(self.links.values())).own(value)
        for p, message in messages.items():
            self._note(p, message)
            self.links[p].release(self.reader[p])
        if self.route.channel.stream == "params":
            self.versions.see(value)
        return True, value

    def receive_from(self, p: int) -> tuple[bool, Any]:
        """Take what one sender has sent: (whether it has, the value)."""
        link, reader = self.links[p], self.reader[p]
        if not link.waiting(reader):
            return False, None
        message = link.peek(reader)
        value = link.own(self.route.taken(p, self.q, message.value))
        self._note(p, message)
        link.release(reader)
        return True, value

    def _note(self, p: int, message: Message) -> None:
        """Keep account of one message."""
        self.flow.messages += 1
        self.flow.fill += self.links[p].waiting(self.reader[p]) / self.links[p].capacity
        if self.versions.known and self.route.channel.stream in ("experience", "gradients"):
            self.flow.note_lag((self.versions.newest - message.version) / self.versions.applies)

    def _late(self, message: Message) -> bool:
        """Whether a message is older than the bound allows; such are dropped, and counted."""
        bound = self.route.channel.bound
        return (
            self.versions.known
            and bound is not None
            and self.versions.newest - message.version > bound * self.versions.applies
        )


class NewestInbox(Inbox):
    """A register: the newest params. Waits only if what is made with them would be older than the bound allows."""

    def __init__(self, route: Route, q: int, links: dict[int, Link], versions: Versions) -> None:
        super().__init__(route, q, links, versions)
        self._due = self._published()
        """Messages that would have been received by now, had all been waited for."""
        self._asked = False

    def receive(self) -> tuple[bool, Any]:
        """Take the newest of each shard."""
        if not self._asked:
            self._due, self._asked = self._due + 1, True
        bound = self.route.channel.bound
        per_update = self.versions.messages if self.route.channel.slot == "view" else 1
        if bound is not None and self._published() < self._due - bound * per_update:
            return False, None
        found = {p: link.newest() for p, link in self.links.items()}
        parts = {p: m.value for p, m in found.items() if m is not None}
        if len(parts) < len(found):
            return False, None
        self._asked = False
        if self.route.channel.slot == "acting":  # one message for each unroll: who was late does not run ahead later
            self._due = max(self._due, self._published())
        value = self.route.merge(parts)
        self.flow.messages += 1
        self.versions.see(value)
        return True, value

    def _published(self) -> int:
        """Messages after the first, which everybody begins with."""
        return max(min(link.sent for link in self.links.values()) - 1, 0)


class FirstComeInbox(Inbox):
    """Groups of experience in the order in which they come, as many as one update learns from.

    A group goes to its own place if that is free, so that in lock-step nothing differs from a synchronous run.
    """

    def __init__(self, route: Route, q: int, links: dict[int, Link], versions: Versions) -> None:
        super().__init__(route, q, links, versions)
        self._held: list[tuple[int, Any, Message]] = []
        """Groups that were taken, each with what told its version."""
        self._turn = 0
        self._heard: Counter[int] = Counter()
        """Messages of each sender for this update; with a bound on lag nobody may send for two updates at once."""

    def receive(self) -> tuple[bool, Any]:
        """Take groups until there are enough."""
        self._drop_late()
        places = self.route.wanted(self.q)
        order = sorted(self.links, key=lambda p: (p < self._turn, p))
        while len(self._held) < len(places):
            bound = self.route.channel.bound
            ready = [p for p in order if self.links[p].waiting(self.reader[p])]
            ready = [p for p in ready if bound is None or self._heard[p] <= bound]
            if not ready:
                return False, None
            for p in ready:
                self._take(p)
            self._turn = ready[-1] + 1
        chosen, self._held = self._held[: len(places)], self._held[len(places) :]
        self._heard.clear()
        free = dict.fromkeys(places)
        placed: dict[int, Any] = {}
        for g, value, _ in chosen:
            if g in free:
                placed[g] = value
                del free[g]
        extra = [value for _, value, _ in chosen if not any(value is v for v in placed.values())]
        placed |= dict(zip(free, extra, strict=True))
        return True, self.route.join([placed[g] for g in places])

    def _take(self, p: int) -> None:
        link, reader = self.links[p], self.reader[p]
        message = link.peek(reader)
        if self._late(message):
            self.flow.dropped += 1
        else:
            self._note(p, message)
            self._heard[p] += 1
            version = Message(None, message.version)  # the value itself goes with its release
            for k in self.route.shared(p, self.q):
                value = link.own(self.route.slice(message.value, slice(k, k + 1)))
                self._held.append((self.route.made(p)[k], value, version))
        link.release(reader)

    def _drop_late(self) -> None:
        """Drop what came in time but grew too old since, because earlier updates had enough without it."""
        late = [held for held in self._held if self._late(held[2])]
        if late:
            self.flow.dropped += len({id(message) for _, _, message in late})
            self._held = [held for held in self._held if not self._late(held[2])]


class SamplesInbox(Inbox):
    """Samples of every store; what one that has died would have sent is drawn from the others again meanwhile."""

    def receive(self) -> tuple[bool, Any]:
        """Take a message of each store that takes part."""
        absent = [p for p, link in self.links.items() if not link.waiting(self.reader[p])]
        here = [p for p in self.links if p not in absent]
        if not absent:
            return super().receive()
        if not here or not all(self.links[p].away() for p in absent):
            return False, None
        parts = {p: self.receive_from(p)[1] for p in here}
        for k, p in enumerate(absent):
            parts[p] = instead(parts[here[k % len(here)]], len(self.route.shared(p, self.q)))
        return True, self.route.merge(parts)


class InTurnInbox(Inbox):
    """One message of whoever has one, in turn: gradients that are applied one by one."""

    def __init__(self, route: Route, q: int, links: dict[int, Link], versions: Versions) -> None:
        super().__init__(route, q, links, versions)
        self._turn = 0

    def receive(self) -> tuple[bool, Any]:
        """Take the next that is not too old."""
        for p in sorted(self.links, key=lambda p: (p < self._turn, p)):
            link, reader = self.links[p], self.reader[p]
            while link.waiting(reader):
                message = link.peek(reader)
                if self._late(message):
                    self.flow.dropped += 1
                    link.release(reader)
                    continue
                self._turn = p + 1
                return self.receive_from(p)
        return False, None


class PeersInbox(Inbox):
    """What all peers have sent so far, own messages included, weighted as in a mean over all of them.

    With a bound on lag nobody gets ahead of the others by more; with bound 0 it is an all-reduce.
    """

    def __init__(self, route: Route, q: int, links: dict[int, Link], versions: Versions) -> None:
        super().__init__(route, q, links, versions)
        self._round = 0

    def receive(self) -> tuple[bool, Any]:
        """Sum what is there."""
        bound = self.route.channel.bound
        taken = {p: link.sent - link.waiting(self.reader[p]) for p, link in self.links.items()}
        reach = None if bound is None else self._round + 1 + bound * self.versions.applies
        behind = 0 if bound is None else self._round + 1 - bound * self.versions.applies
        if any(link.sent < behind for link in self.links.values()) or self.links[self.q].sent <= self._round:
            return False, None
        groups = sum(len(self.route.made(p)) for p in self.links)
        total: Any = None
        for p, link in sorted(self.links.items()):
            share = len(self.route.made(p)) / groups
            count = link.waiting(self.reader[p])
            count = count if reach is None else min(count, reach - taken[p])
            for ahead in range(count):
                message = link.peek(self.reader[p], ahead)
                self.flow.messages += 1
                self.flow.note_lag(abs(self._round - taken[p] - ahead) / self.versions.applies)
                part = jax.tree.map(lambda x, share=share: x * share, message.value)
                total = part if total is None else jax.tree.map(lambda a, b: a + b, total, part)
            link.release(self.reader[p], count)
        self._round += 1
        return True, total


class PeerExchange(Protocol):
    """PeerExchange ends of a channel among peers, where they are one thing."""

    flow: Flow

    def send(self, value: Any) -> bool:
        """Hand a value over; False if there is no room yet."""

    def receive(self) -> tuple[bool, Any]:
        """Take what has arrived: (whether it has, the value)."""


class SharedExchange:
    """PeerExchange ends of one memory that peers add to: what is received is what it holds."""

    def __init__(self, vector: SharedValue) -> None:
        self.vector = vector
        self.flow = Flow()

    def send(self, value: Any) -> bool:
        """Add."""
        self.vector.add(value)
        self.flow.messages += 1
        return True

    def receive(self) -> tuple[bool, Any]:
        """Read."""
        return True, self.vector.read()


def make_inbox(route: Route, q: int, links: dict[int, Link], versions: Versions) -> Inbox:
    """The inbox that a channel's discipline asks for."""
    channel = route.channel
    kind: type[Inbox] = Inbox
    if channel.kind == "register":
        kind = NewestInbox
    elif channel.kind == "collective" and channel.mode == "async":
        kind = PeersInbox
    elif channel.mode == "first" or (channel.mode == "async" and channel.stream == "experience"):
        kind = FirstComeInbox
    elif channel.mode == "async" and channel.stream == "samples":
        kind = SamplesInbox
    elif channel.mode == "async" and channel.stream == "gradients":
        kind = InTurnInbox
    return kind(route, q, links, versions)
