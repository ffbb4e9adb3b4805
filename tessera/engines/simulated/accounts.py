"""From what replicas and nodes counted in virtual time to a prediction."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from tessera.channels.link import Flow
from tessera.engines.simulated.deployment import Deployment
from tessera.engines.simulated.prediction import CountedFlow, NodeUse, Prediction
from tessera.engines.simulated.replica import SimulatedReplica
from tessera.engines.simulated.simulated_node import SimulatedNode


@dataclass(frozen=True, kw_only=True)
class Accounts:
    """What was counted, while so many updates passed in so many seconds."""

    deployment: Deployment
    replicas: list[SimulatedReplica]
    nodes: list[SimulatedNode]
    memory: dict[str, int]
    """Fragment -> bytes of one of its processes."""
    copies: dict[str, list[float]]
    """Stream -> receptions of all replicas, and of those that are simulated."""
    gradients: float
    """How many gradients each one stands for that was applied by itself."""
    updates: int
    seconds: float
    steps: int
    """Of each environment in an update."""

    def prediction(self) -> Prediction:
        """All of it, for all replicas."""
        fragments = self.deployment.full.fragments
        busy = dict.fromkeys((f.title for f in fragments), 0.0)
        waited: dict[str, defaultdict[str, float]] = {f.title: defaultdict(float) for f in fragments}
        for replica in self.replicas:
            title = fragments[replica.fragment].title
            share = replica.stands_for / (fragments[replica.fragment].replicas * self.seconds)
            busy[title] += replica.busy * share
            for slot, waiting in replica.waited.items():
                waited[title][slot] += waiting * share
        lags = self._lags()
        updates = self.updates * self.gradients
        steps = float(self.deployment.full.envs_per_update) * self.steps
        return Prediction(
            steps_per_second=updates * steps / self.seconds,
            updates_per_second=updates / self.seconds,
            busy=busy,
            flows=self._flows(),
            seconds=self.seconds,
            waiting={t: dict(sorted(slots.items(), key=lambda slot: -slot[1])) for t, slots in waited.items()},
            lags=lags,
            nodes=self._use_of_nodes() if len(self.nodes) > 1 else (),
            memory=self.memory,
            replicas=sum(f.replicas for f in fragments),
            simulated=len(self.replicas),
            price_per_hour=self._price(),
        )

    def _price(self) -> float:
        """Of all nodes with replicas for an hour; 0 where one of them has no price."""
        priced = [
            (kind.price, alike) for kind, alike in zip(self.deployment.kinds, self.deployment.nodes_alike, strict=True)
        ]
        return sum(price * alike for price, alike in priced) if all(price for price, _ in priced) else 0.0

    def _lags(self) -> dict[str, dict[int, int]]:
        """How many messages of each stream were how old; before flows are taken."""
        ages: dict[str, Counter[int]] = {}
        for replica in self.replicas:
            for k, inbox in replica.port.inboxes.items():
                if isinstance(inbox.flow, CountedFlow) and inbox.flow.ages:
                    ages.setdefault(self.deployment.plan.channels[k].stream, Counter()).update(inbox.flow.ages)
        return {stream: dict(sorted(counts.items())) for stream, counts in ages.items()}

    def _flows(self) -> dict[str, Flow]:
        flows: dict[str, Flow] = {}
        for replica in self.replicas:
            for stream, flow in replica.port.take_flows().items():
                flows.setdefault(stream, Flow()).merge(flow)
        for stream, flow in flows.items():
            true, simulated = self.copies.get(stream, (1.0, 1.0))
            flow.messages, flow.dropped = (round(n * true / simulated) for n in (flow.messages, flow.dropped))
            flow.fill *= true / simulated
            flow.bytes = round(flow.bytes * (self._publications() if stream == "params" else 1.0))
        return flows

    def _publications(self) -> float:
        """How many messages with params one stands for."""
        channels = self.deployment.plan.channels
        paces = [self.deployment.publications(k) for k, channel in enumerate(channels) if channel.stream == "params"]
        return max(1.0, self.gradients * max(paces, default=1.0))

    def _use_of_nodes(self) -> tuple[NodeUse, ...]:
        """What each node does; those that hold the same together."""
        held: list[Counter[str]] = [Counter() for _ in self.nodes]
        for replica in self.replicas:
            title = self.deployment.plan.fragments[replica.fragment].title
            held[self.deployment.node_of[replica.place]][title] += 1
        found: dict[tuple[str, str], list[NodeUse]] = {}
        for node, titles, alike in zip(self.nodes, held, self.deployment.nodes_alike, strict=True):
            holds = ", ".join(f"{count} × {title}" for title, count in titles.items())
            memory = sum(count * self.memory[title] for title, count in titles.items())
            use = node.use(holds, alike, self.seconds, memory)
            found.setdefault((use.kind, holds), []).append(use)
        return tuple(_together(uses) for uses in found.values())


def _together(uses: list[NodeUse]) -> NodeUse:
    """The mean of nodes that hold the same."""
    total = sum(use.alike for use in uses)

    def mean(name: str) -> float:
        return sum(use.alike * float(getattr(use, name)) for use in uses) / total

    names = ("cores", "sent", "received", "card", "memory", "available")
    return NodeUse(uses[0].kind, uses[0].holds, total, *map(mean, names))
