"""Where the replicas of a plan are, and how many replicas and nodes each simulated one stands for."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tessera.channels.routes import Route
from tessera.engines.ray_backend.capacity import with_shared_gpus
from tessera.engines.simulated.cluster import Cluster, NodeKind, place_replicas
from tessera.graph.channel import Channel
from tessera.graph.disciplines import Newest, every_of
from tessera.graph.groups import deal
from tessera.graph.plan import Placement, Plan
from tessera.graph.streams import RouteKind

MOST_EXACT = 500
"""Replicas of the largest plan of which every replica is simulated."""
SAMPLED = 96
"""Replicas that are simulated of a larger plan, about."""
SAMPLED_EACH_STEP = 32
"""The same, where they exchange messages at every step."""
FEW = 2
"""Nodes that hold the same are all simulated if there are no more."""

Held = tuple[str, tuple[tuple[int, int], ...]]
"""Kind of a node, and how many replicas of each fragment are on it."""


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """A plan on nodes. Of a large one, some nodes are simulated, and each stands for others that hold the same."""

    full: Plan
    """All replicas."""
    plan: Plan
    """Those that are simulated: the groups of the others are theirs, so that batches are as large."""
    kinds: tuple[NodeKind, ...]
    """Of each node that is simulated."""
    node_of: tuple[int, ...]
    """The node of each place."""
    numbers: tuple[int, ...]
    """The number of each place's replica in its fragment of the full plan."""
    stands_for: tuple[float, ...]
    """Replicas that each place's stands for, itself included."""
    nodes_alike: tuple[float, ...]
    """Nodes that each node stands for."""
    cluster: Cluster | None = None
    """None: one machine, whose cores replicas share."""

    @property
    def exact(self) -> bool:
        """Whether every replica is simulated."""
        return len(self.numbers) == sum(f.replicas for f in self.full.fragments)

    def publications(self, channel: int) -> float:
        """How many messages of a channel there are, for each gradient that one is simulated for."""
        return every_of(self.plan.channels[channel].discipline) / every_of(self.full.channels[channel].discipline)

    def copies(self, route: Route, p: int, q: int) -> tuple[float, float]:
        """How many messages one from sender `p` to receiver `q` stands for: of those that one sender sends, and of
        those that one receiver gets."""
        channel = route.channel
        sender, receiver = self.plan.place(channel.source, p), self.plan.place(channel.target, q)
        sending, receiving = self.stands_for[sender], self.stands_for[receiver]
        match channel.route:
            case RouteKind.RESHARD | RouteKind.AGENTS:
                made = self.full.fragments[channel.source].held(channel.made_by)[self.numbers[sender]]
                target = self.full.fragments[channel.target]
                wanted = target.groups if channel.stream == "experience" else target.held(channel.wanted_by)
                common = len(route.common(p, q))
                sent = common / (sending * max(len(wanted[self.numbers[receiver]]), 1))
                received = common / (receiving * max(len(made), 1))
                return max(1.0, sent), max(1.0, received)
            case RouteKind.COPY:
                return max(1.0, receiving / sending), 1.0
            case _:
                return receiving, sending


def on_one_machine(plan: Plan, cores: int, accelerators: int) -> Deployment:
    """All replicas on one machine."""
    places = plan.places
    return Deployment(
        full=plan,
        plan=plan,
        kinds=(NodeKind(name="this machine", cores=cores, accelerators=accelerators),),
        node_of=(0,) * len(places),
        numbers=tuple(number for _, number, _ in places),
        stands_for=(1.0,) * len(places),
        nodes_alike=(1.0,),
    )


def on_cluster(plan: Plan, cluster: Cluster, most_exact: int = MOST_EXACT) -> Deployment:
    """Place replicas as Ray does; of a plan with more than `most_exact`, choose the nodes that are simulated."""
    plan = with_shared_gpus(plan, [kind.resources for kind in cluster.nodes])
    kinds, placed, places = cluster.nodes, place_replicas(plan, cluster), plan.places
    replicas = len(places)
    contents: dict[int, Counter[int]] = {}
    for (i, _, _), node in zip(places, placed, strict=True):
        contents.setdefault(node, Counter())[i] += 1
    factor = 1.0
    if replicas > most_exact:
        each_step = any(c.stream == "timesteps" for c in plan.channels)
        factor = replicas / min(SAMPLED_EACH_STEP if each_step else SAMPLED, most_exact)
    chosen = _choose(plan, kinds, contents, factor)
    kept = [place for place in range(replicas) if placed[place] in chosen]
    order = {node: k for k, node in enumerate(chosen)}
    stands_for = tuple(chosen[placed[place]] for place in kept)
    return Deployment(
        full=plan,
        plan=plan if len(kept) == replicas else _sampled(plan, [places[place][:2] for place in kept], stands_for),
        kinds=tuple(kinds[node] for node in chosen),
        node_of=tuple(order[placed[place]] for place in kept),
        numbers=tuple(places[place][1] for place in kept),
        stands_for=stands_for,
        nodes_alike=tuple(chosen.values()),
        cluster=cluster,
    )


def updates_until_all_are_heard(deployment: Deployment) -> int:
    """Updates in which each simulated replica contributes about once."""
    plan = deployment.plan
    if plan.solo:
        return plan.fragments[plan.home("grad")].replicas
    return max(1, plan.groups // plan.batches)


def _choose(
    plan: Plan, kinds: Sequence[NodeKind], contents: dict[int, Counter[int]], factor: float
) -> dict[int, float]:
    """Nodes that are simulated -> how many each stands for: of nodes that hold the same, one in `factor`."""
    alike: dict[Held, list[int]] = {}
    for node in sorted(contents):
        alike.setdefault((kinds[node].name, tuple(sorted(contents[node].items()))), []).append(node)
    chosen: dict[int, float] = {}
    for (_, held), nodes in alike.items():
        whole = any(plan.fragments[i].sharded or plan.fragments[i].agents for i, _ in held)
        count = len(nodes) if whole or factor <= 1 else min(len(nodes), max(FEW, round(len(nodes) / factor)))
        for k in range(count):
            chosen[nodes[k * len(nodes) // count]] = len(nodes) / count
    return dict(sorted(chosen.items()))


def _sampled(plan: Plan, kept: list[tuple[int, int]], stands_for: Sequence[float]) -> Plan:
    """The plan with some of its replicas, which hold the groups of all."""
    fragments = []
    for i, fragment in enumerate(plan.fragments):
        weights = [weight for (j, _), weight in zip(kept, stands_for, strict=True) if j == i]
        fragments.append(_with_weights(fragment, weights, plan.groups, plan.batches))
    learner = plan.home("grad")
    gradients = plan.fragments[learner].replicas / fragments[learner].replicas if plan.solo else 1.0
    channels = tuple(_for_gradients(channel, gradients) for channel in plan.channels)
    return replace(plan, fragments=tuple(fragments), channels=channels, origin=None)


def _for_gradients(channel: Channel, gradients: float) -> Channel:
    """The channel where a gradient that is applied alone stands for several: params are sent after fewer of them."""
    discipline = channel.discipline
    if not isinstance(discipline, Newest):
        return channel
    return replace(channel, discipline=replace(discipline, every=max(1, round(discipline.every / gradients))))


def _with_weights(fragment: Placement, weights: list[float], groups: int, batches: int) -> Placement:
    if len(weights) == fragment.replicas:
        return fragment
    everywhere = len(fragment.batches) > 1 and fragment.batches[0] == fragment.batches[-1]
    learned = (fragment.batches[:1] * len(weights)) if everywhere else _dealt(batches, weights)
    return replace(
        fragment,
        replicas=len(weights),
        groups=_dealt(groups, weights),
        batches=learned if fragment.batches else (),
        cores=fragment.cores[: len(weights)],
    )


def _dealt(groups: int, weights: list[float]) -> tuple[tuple[int, ...], ...]:
    """Groups in contiguous ranges, in proportion to weights."""
    if len(set(weights)) == 1:
        return deal(groups, len(weights))
    total = sum(weights)
    edges = [round(groups * x / total) for x in itertools.accumulate(weights, initial=0.0)]
    return tuple(tuple(range(a, b)) for a, b in itertools.pairwise(edges))
