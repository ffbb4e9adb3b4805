"""Inboxes: how a replica takes what arrives. One class for each discipline, whatever the links are made of."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import Any, Protocol

from tessera.channels.link import Flow, Link, Message, Straggler
from tessera.channels.routes import Route
from tessera.channels.shared_tree import SharedTree
from tessera.channels.value_operations import BatchBuilder, Values
from tessera.graph.disciplines import FirstCome, InOrder, InTurn, Newest, Peers, Samples, Shared, Sync, bound_of
from tessera.program.exchange import substitute_groups
from tessera.program.peers import SharedParts


class Versions:
    """The versions of params that a replica has seen, and how it counts lag."""

    def __init__(self, applies: int, messages: int, known: bool = True) -> None:
        self.known = known
        """Whether params ever come here; a store alone cannot tell how old experience is."""
        self.newest = 0
        """The newest version that this replica has published or received, in gradients applied."""
        self.filling = False
        """Whether a replay is being filled, before the first update."""
        self.applies = applies
        """Gradients applied in one update."""
        self.messages = messages
        """Messages that carry a view to `grad` in one update."""


class Inbox:
    """One replica's end of an incoming channel. The plain one takes a message from each sender, in order."""

    def __init__(self, route: Route, q: int, links: dict[int, Link], versions: Versions) -> None:
        self.route, self.q, self.links, self.versions = route, q, links, versions
        self.reader = {p: route.reader(p, q) for p in links}
        self._senders = sorted(links)
        self._straggler = Straggler(self._senders)
        self.flow = Flow()
        self.values: Values = route.values
        self.bound = bound_of(route.channel.discipline)

    def receive(self) -> tuple[bool, Any]:
        """Take what is due: (whether it has arrived, the value)."""
        if self._straggler.exists(lambda p: not self.links[p].waiting(self.reader[p])):
            return False, None
        messages = {p: link.peek(self.reader[p]) for p, link in self.links.items()}
        value = self.route.merge({p: self.route.taken(p, self.q, m.value) for p, m in messages.items()})
        if len(messages) == 1:
            value = self._owned(next(iter(self.links.values())), value)
        for p, message in messages.items():
            self._count(p, message)
            self.links[p].release(self.reader[p])
        if self.route.channel.stream == "params":
            self._note_version(value)
        return True, value

    def receive_from(self, p: int) -> tuple[bool, Any]:
        """Take what one sender has sent: (whether it has arrived, the value)."""
        link, reader = self.links[p], self.reader[p]
        if not link.waiting(reader):
            return False, None
        message = link.peek(reader)
        value = self._owned(link, self.route.taken(p, self.q, message.value))
        self._count(p, message)
        link.release(reader)
        return True, value

    def _in_turn(self, first: int) -> Iterator[int]:
        """All senders, from number `first` on, and then those before it."""
        begin = bisect_left(self._senders, first)
        for k in range(begin - len(self._senders), begin):
            yield self._senders[k]

    def _owned(self, link: Link, value: Any) -> Any:
        """A value that outlives its message."""
        return self.values.own(value) if link.borrowed else value

    def _note_version(self, view: Any) -> None:
        self.versions.newest = self.values.version(view)

    def _count(self, p: int, message: Message) -> None:
        """Add one message to the account."""
        self.flow.messages += 1
        self.flow.fill += self.links[p].waiting(self.reader[p]) / self.links[p].capacity
        if self.versions.known and self.route.channel.stream in ("experience", "gradients"):
            self.flow.note_lag((self.versions.newest - message.version) / self.versions.applies)

    def _is_late(self, version: int) -> bool:
        """Whether a message is older than the bound allows; such are dropped, and counted."""
        return (
            self.versions.known
            and self.bound is not None
            and self.versions.newest - version > self.bound * self.versions.applies
        )


class NewestInbox(Inbox):
    """The newest params. Waits only if what is made with them would be older than the bound allows."""

    def __init__(self, route: Route, q: int, links: dict[int, Link], versions: Versions) -> None:
        super().__init__(route, q, links, versions)
        self._due = self._published()
        """Messages that would have been received by now, had all been waited for."""
        self._asked = False

    def receive(self) -> tuple[bool, Any]:
        """Take the newest of each shard."""
        if not self._asked:
            self._due, self._asked = self._due + 1, True
        per_update = self.versions.messages if self.route.channel.slot == "view" else 1
        if self.bound is not None and self._published() < self._due - self.bound * per_update:
            return False, None
        newest = {p: link.newest() for p, link in self.links.items()}
        parts = {p: message.value for p, message in newest.items() if message is not None}
        if len(parts) < len(newest):
            return False, None
        self._asked = False
        if self.route.channel.slot == "acting":  # one message per unroll: an actor that was late does not catch up
            self._due = max(self._due, self._published())
        value = self.route.merge(parts)
        self.flow.messages += 1
        self._note_version(value)
        return True, value

    def _published(self) -> int:
        """Messages after the first, which every receiver begins with."""
        return max(min(link.sent for link in self.links.values()) - 1, 0)


class FirstComeInbox(Inbox):
    """Groups of experience in the order in which they arrive, as many as one update learns from.

    A group goes to its own position if that is free, so that in lock-step nothing differs from a synchronous run. It is
    copied once, from the message into the batch.
    """

    def __init__(self, route: Route, q: int, links: dict[int, Link], versions: Versions) -> None:
        super().__init__(route, q, links, versions)
        self._positions = {group: k for k, group in enumerate(route.wanted(q))}
        """Group -> its own position in a batch."""
        self._batches: list[_Filling] = []
        """Batches that are being filled: what does not fit into one begins the next."""
        self._full = 0
        """How many of them are full before the first that is not, or fewer."""
        self._checked = 0
        """The newest version by which late groups were dropped."""
        self._turn = 0
        self._arrivals: Counter[int] = Counter()
        """Messages of each sender for this update; with a bound on lag, one more than that at the most."""
        self._partial = len(route.offered(q)) > len(self._positions)
        """Whether a batch takes some of the groups only. Then, while a replay is filled, the bound does not hold: the
        last sender to finish would wait for others that are done."""

    def receive(self) -> tuple[bool, Any]:
        """Take groups until a batch is full."""
        self._drop_late()
        first = self._turn
        while not self._has_batch():
            if not self._take_each(first):
                return False, None
        self._arrivals.clear()
        self._full = max(0, self._full - 1)
        return True, self._batches.pop(0).value()

    def _has_batch(self) -> bool:
        return bool(self._batches) and self._batches[0].full

    def _take_each(self, first: int) -> bool:
        """Take a message of each sender that has one, in turn, until a batch is full; whether there was any."""
        most = None if self._partial and self.versions.filling else self.bound
        found = False
        for p in self._in_turn(first):
            if not self.links[p].waiting(self.reader[p]) or (most is not None and self._arrivals[p] > most):
                continue
            self._take(p)
            self._turn, found = p + 1, True
            if self._has_batch():  # what is left waits in its links, and holds its senders up
                break
        return found

    def _take(self, p: int) -> None:
        link, reader = self.links[p], self.reader[p]
        message = link.peek(reader)
        if self._is_late(message.version):
            self.flow.dropped += 1
        else:
            self._count(p, message)
            self._arrivals[p] += 1
            number = link.sent - link.waiting(reader)
            for k in self.route.common(p, self.q):
                part = self.route.groups(message.value, slice(k, k + 1))
                self._open_batch().put(self.route.made(p)[k], part, (p, number), message.version)
        link.release(reader)

    def _open_batch(self) -> _Filling:
        """The first batch that is not full."""
        while self._full < len(self._batches) and self._batches[self._full].full:
            self._full += 1
        if self._full == len(self._batches):
            builder = self.values.batch(len(self._positions), self.route.axis)
            self._batches.append(_Filling(self._positions, builder))
        return self._batches[self._full]

    def _drop_late(self) -> None:
        """Drop groups that arrived in time but grew too old since, because earlier updates had enough without them."""
        if self._checked == self.versions.newest:
            return
        self._checked, self._full = self.versions.newest, 0
        dropped = {m for batch in self._batches for m in batch.drop(self._is_late)}
        self.flow.dropped += len(dropped)


class _Filling:
    """A batch under construction: which group is in which position, and where each came from."""

    def __init__(self, positions: dict[int, int], builder: BatchBuilder) -> None:
        """`positions` has each group's own."""
        self._own, self._builder = positions, builder
        self._free = list(range(len(positions)))
        """A heap of all positions that are free, and some that are filled."""
        self._sources: dict[int, tuple[tuple[int, int], int]] = {}
        """Position -> the message that filled it, and its version."""

    @property
    def full(self) -> bool:
        """Whether every position is filled."""
        return len(self._sources) == len(self._own)

    def put(self, group: int, part: Any, message: tuple[int, int], version: int) -> None:
        """Copy a group to its own position, or to the first free one."""
        position = self._own.get(group)
        if position is None or position in self._sources:
            while self._free[0] in self._sources:
                heapq.heappop(self._free)
            position = self._free[0]
        self._sources[position] = message, version
        self._builder.put(position, part)

    def drop(self, is_late: Any) -> Iterator[tuple[int, int]]:
        """Free the positions of groups that are late; the messages that brought them."""
        for position, (message, version) in list(self._sources.items()):
            if is_late(version):
                del self._sources[position]
                heapq.heappush(self._free, position)
                yield message

    def value(self) -> Any:
        """The batch, once it is full."""
        return self._builder.finish()


class SamplesInbox(Inbox):
    """Samples of every store. The part of a store that is down is drawn from the other stores meanwhile."""

    def receive(self) -> tuple[bool, Any]:
        """Take a message of each store that takes part."""
        absent = {p: None for p, link in self.links.items() if not link.waiting(self.reader[p])}
        present = [p for p in self.links if p not in absent]
        if not absent:
            return super().receive()
        if not present or not all(self.links[p].away() for p in absent):
            return False, None
        parts = {p: self.receive_from(p)[1] for p in present}
        for k, p in enumerate(absent):
            parts[p] = substitute_groups(parts[present[k % len(present)]], len(self.route.common(p, self.q)))
        return True, self.route.merge(parts)


class InTurnInbox(Inbox):
    """One message of a sender that has one, in turn: gradients that are applied one by one."""

    def __init__(self, route: Route, q: int, links: dict[int, Link], versions: Versions) -> None:
        super().__init__(route, q, links, versions)
        self._turn = 0

    def receive(self) -> tuple[bool, Any]:
        """Take the next that is not too old."""
        for p in self._in_turn(self._turn):
            link, reader = self.links[p], self.reader[p]
            while link.waiting(reader):
                if self._is_late(link.peek(reader).version):
                    self.flow.dropped += 1
                    link.release(reader)
                    continue
                self._turn = p + 1
                return self.receive_from(p)
        return False, None


class PeersInbox(Inbox):
    """Everything that peers have sent so far, this replica included, weighted as in a mean over all of them.

    With a bound on lag no peer gets ahead of the others by more; with bound 0 it is an all-reduce.
    """

    def __init__(self, route: Route, q: int, links: dict[int, Link], versions: Versions) -> None:
        super().__init__(route, q, links, versions)
        self._round = 0

    def receive(self) -> tuple[bool, Any]:
        """Sum what is there."""
        bound = self.bound
        taken = {p: link.sent - link.waiting(self.reader[p]) for p, link in self.links.items()}
        reach = None if bound is None else self._round + 1 + bound * self.versions.applies
        behind = 0 if bound is None else self._round + 1 - bound * self.versions.applies
        if any(link.sent < behind for link in self.links.values()) or self.links[self.q].sent <= self._round:
            return False, None
        groups = sum(len(self.route.made(p)) for p in self.links)
        total: Any = None
        for p, link in sorted(self.links.items()):
            weight = len(self.route.made(p)) / groups
            count = link.waiting(self.reader[p])
            count = count if reach is None else min(count, reach - taken[p])
            for ahead in range(count):
                message = link.peek(self.reader[p], ahead)
                self.flow.messages += 1
                self.flow.note_lag(abs(self._round - taken[p] - ahead) / self.versions.applies)
                part = self.values.scale(message.value, weight)
                total = part if total is None else self.values.sum([total, part])
            link.release(self.reader[p], count)
        self._round += 1
        return True, total


class PeerExchange(Protocol):
    """Both ends of a channel among peers, where they are one thing."""

    flow: Flow

    def send(self, value: Any) -> bool:
        """Hand a value over; False if it has to wait."""

    def receive(self) -> tuple[bool, Any]:
        """Take what has arrived: (whether it has, the value)."""


class SharedExchange:
    """Both ends of one memory that peers add to: what is received is what it holds."""

    def __init__(self, shared: SharedTree) -> None:
        self.shared = shared
        self.flow = Flow()
        self._seen = 0
        """Messages of others that were in what was read last."""

    def begin(self, value: SharedParts) -> None:
        """Set this peer's part of the memory, before any peer adds."""
        self.shared.begin(value)
        self._seen = 0

    def send(self, value: Any) -> bool:
        """Add."""
        self.shared.add(value)
        self.flow.messages += 1
        return True

    def receive(self) -> tuple[bool, Any]:
        """Read; what others have added since this was read last is by how much it trailed behind."""
        before = self._seen
        value = self.read()
        self.flow.note_lag((self._seen - before) / self.shared.peers)
        return True, value

    def read(self) -> SharedParts:
        """What the memory holds, for whoever begins with it."""
        self._seen = self.shared.sent_by_others
        return self.shared.read()


def make_inbox(route: Route, q: int, links: dict[int, Link], versions: Versions) -> Inbox:
    """The inbox that a channel's discipline asks for."""
    kind: type[Inbox]
    match route.channel.discipline:
        case Sync() | InOrder():
            kind = Inbox
        case Newest():
            kind = NewestInbox
        case FirstCome():
            kind = FirstComeInbox
        case Samples():
            kind = SamplesInbox
        case InTurn():
            kind = InTurnInbox
        case Peers():
            kind = PeersInbox
        case Shared():
            raise TypeError("peers that share one memory have no inbox")
    return kind(route, q, links, versions)
