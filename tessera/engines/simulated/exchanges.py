"""What peers exchange as one, in virtual time: a memory that they share, or a collective that all wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tessera.channels.link import Flow
from tessera.channels.port import HEADER
from tessera.channels.routes import Route
from tessera.engines.simulated.costs import LinkCosts
from tessera.engines.simulated.links import Charge
from tessera.engines.simulated.network import NetworkCard
from tessera.engines.simulated.tokens import NOTHING, Token, there
from tessera.engines.simulated.virtual_time import VirtualTime


class SharedTokens:
    """Both ends of one memory that peers add to: nobody waits."""

    def __init__(self) -> None:
        self.flow = Flow()
        self._token = NOTHING

    def send(self, value: Token) -> bool:
        """Add."""
        self._token = value
        self.flow.messages += 1
        return True

    def receive(self) -> tuple[bool, Token]:
        """Read."""
        return True, self._token


@dataclass(frozen=True)
class PeerRing:
    """Peers on several nodes, each of which passes on what it gets from the one before."""

    peers: float
    cards: tuple[tuple[NetworkCard, int], ...]
    """Of each node, with the number of peers on it: neighbours in the ring are on different nodes."""
    gathers: bool = False
    """Whether all get what each has, and not its sum."""

    def bytes_of_peer(self, nbytes: int) -> float:
        """What each peer passes on: of a sum every part goes round twice, once to be added up and once to be known."""
        return (self.peers - 1) * nbytes if self.gathers else 2 * (self.peers - 1) / self.peers * nbytes

    def seconds(self, nbytes: int) -> float:
        """How long all of it takes."""
        steps = (self.peers - 1) * (1 if self.gathers else 2)
        slowest = max(count * self.bytes_of_peer(nbytes) / card.bandwidth for card, count in self.cards)
        return slowest + steps * max(card.latency for card, _ in self.cards)

    def count_bytes(self, nbytes: int) -> None:
        """Add what passes each card to its account."""
        for card, count in self.cards:
            card.sent_bytes += count * self.bytes_of_peer(nbytes)
            card.received_bytes += count * self.bytes_of_peer(nbytes)


class CollectiveGroup:
    """The peers of one channel, each of which waits for all."""

    def __init__(
        self, route: Route, places: Iterable[int], nbytes: int, ring: PeerRing, costs: LinkCosts,
        time: VirtualTime, wake: Callable[[int], None], charge: Charge,
    ) -> None:  # fmt: skip
        self._route, self._places, self._nbytes, self._ring, self._costs = route, list(places), nbytes, ring, costs
        self._time, self._wake, self._charge = time, wake, charge
        self._values: dict[int, Token] = {}
        self._ready = 0.0
        self._results: dict[int, Token] = {}

    def join(self, place: int, value: Token) -> None:
        """One peer's part."""
        self._values[place] = there(value)
        work = self._charge(place, self._costs.cpu_seconds(int(self._ring.bytes_of_peer(self._nbytes))), "")
        self._ready = max(self._ready, self._time.now + work)
        if len(self._values) == len(self._places):
            self._ring.count_bytes(self._nbytes)
            seconds = self._ring.seconds(self._nbytes) + self._costs.transit_seconds(self._nbytes)
            self._time.after(self._ready - self._time.now + seconds, self._finish)

    def _finish(self) -> None:
        first = self._places[0]
        value = self._route.merge({place - first: value for place, value in self._values.items()})
        self._values, self._results = {}, dict.fromkeys(self._places, value)
        for place in self._places:
            self._wake(place)

    def take(self, place: int) -> tuple[bool, Token]:
        """The result, if it is there."""
        if place not in self._results:
            return False, NOTHING
        return True, self._results.pop(place)


class CollectiveTokens:
    """One peer's end of a collective."""

    def __init__(self, group: CollectiveGroup, place: int) -> None:
        self.flow = Flow()
        self._group, self._place = group, place

    def send(self, value: Token) -> bool:
        """Take part."""
        self._group.join(self._place, value)
        self.flow.messages += 1
        self.flow.bytes += HEADER + value.nbytes
        return True

    def receive(self) -> tuple[bool, Token]:
        """Take what all have made."""
        return self._group.take(self._place)
