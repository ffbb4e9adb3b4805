"""The machines that a plan is simulated on, and which replica is on which of them."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from tessera.engines.base import NoCapacity
from tessera.engines.ray_backend.capacity import Resources, describe_needs, describe_resources, resources_of
from tessera.graph.plan import Plan


@dataclass(frozen=True, kw_only=True)
class NodeKind:
    """Nodes of a cluster that are alike."""

    name: str = "node"
    count: int = 1
    cores: int = 1
    accelerators: int = 0
    memory: int = 0
    """Bytes; 0: not known, and not checked."""
    accelerator_memory: int = 0
    """Bytes of each accelerator; 0: not known."""
    speed: float = 1.0
    """How much is done in a second, relative to the machine on which costs were measured."""
    accelerator_speed: float = 0.0
    """The same of its accelerators; 0: as much as `speed`."""
    bandwidth: float = math.inf
    """Bytes a second through the network card, in each direction."""
    latency: float = 0.0
    """Seconds from this node to any other."""
    price: float = 0.0
    """Of one node for an hour; 0: not known."""

    @property
    def resources(self) -> Resources:
        """What Ray would count."""
        return {"CPU": float(self.cores), "GPU": float(self.accelerators)}


@dataclass(frozen=True)
class Cluster:
    """All nodes, by kind."""

    kinds: tuple[NodeKind, ...]

    @property
    def nodes(self) -> list[NodeKind]:
        """The kind of every node."""
        return [kind for kind in self.kinds for _ in range(kind.count)]

    @property
    def price(self) -> float:
        """Of all nodes for an hour; 0 where one of them has no price."""
        return sum(k.count * k.price for k in self.kinds) if all(k.price for k in self.kinds) else 0.0

    def least_price(self, nodes: int) -> float:
        """Of the cheapest so many nodes for an hour."""
        total, left = 0.0, nodes
        for kind in sorted(self.kinds, key=lambda k: k.price):
            taken = min(left, kind.count)
            total, left = total + taken * kind.price, left - taken
        return total

    @property
    def size(self) -> int:
        """How many nodes there are."""
        return sum(kind.count for kind in self.kinds)

    def describe(self) -> str:
        """What there is, in words."""
        return ", ".join(f"{k.count:,} × {k.name} with {describe_resources(k.resources)}" for k in self.kinds)


def place_replicas(plan: Plan, cluster: Cluster) -> list[int]:
    """The node of every place, as Ray's strategy SPREAD finds them: the largest replicas first, over all nodes in turn.

    Raises with asked and available if one finds no room.
    """
    nodes = cluster.nodes
    free = [dict(kind.resources) for kind in nodes]
    needs = [resources_of(plan, i, r) for i, r, _ in plan.places]
    found = [0] * len(needs)
    turn: deque[int] = deque()
    before: Resources | None = None
    following = 0
    for place in sorted(range(len(needs)), key=lambda place: -sum(needs[place].values())):
        needed = needs[place]
        if needed != before:
            turn, before = deque(k % len(nodes) for k in range(following, following + len(nodes))), needed
        while turn and any(free[turn[0]][kind] < amount for kind, amount in needed.items()):
            turn.popleft()  # nor has it room for others with the same needs
        if not turn:
            _refuse(plan, cluster, place)
        found[place] = turn[0]
        for kind, amount in needed.items():
            free[turn[0]][kind] -= amount
        following = turn[0] + 1
        turn.rotate(-1)
    return found


def _refuse(plan: Plan, cluster: Cluster, place: int) -> None:
    raise NoCapacity(
        f"the cluster has no room for this plan. Asked: {describe_needs(plan)}. Available: {cluster.describe()}. Use "
        "fewer replicas, or add nodes",
        plan.places[place][0],
    )
