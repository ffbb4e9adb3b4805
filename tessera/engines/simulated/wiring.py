"""The links of a plan in virtual time, and the peers that exchange as one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from tessera.channels.link import LinkSpec
from tessera.channels.link_specs import LinkName
from tessera.channels.port import HEADER
from tessera.channels.routes import Route
from tessera.channels.rpc.fan_out import FEWEST_READERS
from tessera.channels.rpc.outbox import EventRate
from tessera.engines.ray_backend.capacity import is_all_gather, is_all_reduce
from tessera.engines.simulated.costs import Costs, exchange_name
from tessera.engines.simulated.deployment import Deployment
from tessera.engines.simulated.exchanges import CollectiveGroup, PeerRing
from tessera.engines.simulated.links import Charge, LinkEnd, LinkWork, SimulatedLink, message_bytes
from tessera.engines.simulated.simulated_node import SimulatedNode
from tessera.engines.simulated.virtual_time import VirtualTime
from tessera.program.exchange import Shards
from tessera.program.shapes import Shapes, message_shape


def count_links(specs: Mapping[LinkName, LinkSpec]) -> Counter[tuple[int, int, bool]]:
    """Links of each exchange: channel, place, whether it sends."""
    counts: Counter[tuple[int, int, bool]] = Counter()
    for (channel, _), spec in specs.items():
        counts[channel, spec.writer, True] += 1
        for place in spec.readers:
            counts[channel, place, False] += 1
    return counts


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """What links are made from."""

    deployment: Deployment
    routes: list[Route]
    nodes: list[SimulatedNode]
    costs: Costs
    shapes: Shapes
    shards: Shards | None
    time: VirtualTime
    wake: Callable[[int, int], None]
    """Has a replica look again if it waits for a channel: (channel, place)."""
    charge: Charge
    copies: dict[str, list[float]] = field(default_factory=dict)
    """Stream -> receptions of all replicas, and of those that are simulated, if each message is sent once."""
    rates: defaultdict[int, EventRate] = field(default_factory=lambda: defaultdict(EventRate))
    """Place -> how often it sends messages."""
    counts: Counter[tuple[int, int, bool]]
    """Links of an exchange: channel, place, whether it sends."""
    sizes: Counter[tuple[int, str]] = field(default_factory=Counter)
    """Bytes of what a place sends of a slot, to all of its receivers if each has a link of its own."""

    def make_link(self, name: LinkName, spec: LinkSpec) -> SimulatedLink:
        """One link, with an end on each node that has readers."""
        (k, lane), node_of, plan = name, self.deployment.node_of, self.deployment.plan
        channel, route = plan.channels[k], self.routes[k]
        several = len({node_of[place] for place in spec.places}) > 1
        first_writer, first_reader = plan.place(channel.source, 0), plan.place(channel.target, 0)
        p, source = spec.writer - first_writer, self.nodes[node_of[spec.writer]]
        by_node: dict[int, list[int]] = {}
        for place in spec.readers:
            by_node.setdefault(node_of[place], []).append(place)
        ends = {}
        for node, places in by_node.items():
            copies = [self.deployment.copies(route, p, place - first_reader) for place in places]
            sent, received = sum(sent for sent, _ in copies), copies[0][1]
            # where a message to the own node stands for others, most of those go to nodes like it
            remote = 1.0 if self.nodes[node] is not source else 1.0 - len(places) / sent
            own = self.nodes[node] is source
            shares = (several or remote > 0) and spec.absent is None and len(places) >= (1 if own else FEWEST_READERS)
            ends[node] = LinkEnd(
                places=tuple(places),
                capacity=spec.capacity,
                costs=self.costs.remote_links if remote or (several and not shares) else self.costs.links,
                cards=(source.card, self.nodes[node].card) if remote else None,
                copies_sent=sent,
                copies_received=received,
                remote=remote,
                shared=shares,
                relay=places[spec.writer % len(places)],
            )
            counts = self.copies.setdefault(channel.stream, [0.0, 0.0])
            for place, (_, received) in zip(places, copies, strict=True):
                counts[0] += received * self.deployment.stands_for[place]
                counts[1] += 1
        nbytes = message_bytes(spec.like)
        stands_for = self.deployment.stands_for[spec.writer]
        if stands_for > 1:
            carried = max(1, round(route.carried(lane) / stands_for))
            agents = len(plan.fragments[channel.source].agents[p]) if plan.fragments[channel.source].agents else 0
            nbytes = message_bytes(message_shape(plan, self.shapes, channel.slot, carried, self.shards, agents))
        self.sizes[spec.writer, channel.slot] += round(stands_for * nbytes + (stands_for - 1) * HEADER)
        work = self._work(k, channel.slot, spec, nbytes)
        return SimulatedLink(
            spec, nbytes, stands_for, self.deployment.publications(k), work, ends, self.time, partial(self.wake, k),
            self.charge, self.rates,
        )  # fmt: skip

    def _work(self, channel: int, slot: str, spec: LinkSpec, nbytes: int) -> LinkWork:
        """What one message is to both ends: its share of their exchanges."""

        def share(place: int, sends: bool) -> float:
            links = self.counts[channel, place, sends]
            return self.costs.exchange_seconds(slot, sends, links, links * nbytes) / links

        received = {place: share(place, False) for place in spec.readers}
        return LinkWork(exchange_name(slot, True), share(spec.writer, True), exchange_name(slot, False), received)

    def make_groups(self, links: dict[LinkName, SimulatedLink]) -> dict[int, CollectiveGroup]:
        """Channel -> peers on several nodes that all wait for all: what they exchange goes round in a ring."""
        plan, found = self.deployment.plan, {}
        node_of, stands_for = self.deployment.node_of, self.deployment.stands_for
        for k, channel in enumerate(plan.channels):
            first = plan.place(channel.source, 0)
            places = range(first, first + plan.fragments[channel.source].replicas)
            several = len({node_of[place] for place in places}) > 1
            if not several or not (is_all_reduce(channel) or is_all_gather(channel)):
                continue
            held = Counter(node_of[place] for place in places)
            cards = tuple((self.nodes[node].card, count) for node, count in held.items())
            ring = PeerRing(sum(stands_for[place] for place in places), cards, is_all_gather(channel))
            nbytes = max(link.nbytes for (j, _), link in links.items() if j == k)
            found[k] = CollectiveGroup(
                self.routes[k], places, nbytes, ring, self.costs.remote_links, self.time, partial(self.wake, k),
                self.charge,
            )  # fmt: skip
        return found
