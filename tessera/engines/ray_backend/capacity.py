"""Whether the nodes of a cluster have room for a plan, and what of it they have room for."""

from __future__ import annotations

import math
from dataclasses import replace

from tessera.errors import TesseraError
from tessera.graph.plan import Channel, Plan
from tessera.graph.smaller_plans import with_fewer

Resources = dict[str, float]


class NoCapacity(TesseraError):
    """Nodes have no room for a plan."""

    def __init__(self, text: str, fragment: int) -> None:
        """`fragment` is the one of which a replica finds no place."""
        super().__init__(text)
        self.fragment = fragment


def reduced(channel: Channel) -> bool:
    """Whether a channel is an all-reduce in which every peer waits for all: jax.distributed does that."""
    return (channel.kind, channel.mode, channel.route) == ("collective", "sync", "mean")


def asked_of(plan: Plan, fragment: int, number: int) -> Resources:
    """Resources that one replica asks for."""
    placed = plan.fragments[fragment]
    cores = float(placed.cores[number]) if placed.cores else 1.0
    if placed.platform == "cpu":
        return {"CPU": cores}
    devices = placed.devices * placed.model
    portion = math.floor(1e4 / plan.sharing) / 1e4  # Ray counts in ten-thousandths
    return {"CPU": cores, "GPU": float(devices) if devices > 1 else portion}


def shared_out(plan: Plan, nodes: list[Resources]) -> Plan:
    """The plan, its replicas sharing accelerators as processes of one machine do where there is not one for each.

    Those that all-reduce cannot: NCCL wants a GPU for each of them.
    """
    asked = sum(f.replicas * f.devices * f.model for f in plan.fragments if f.platform != "cpu")
    there = sum(node.get("GPU", 0.0) for node in nodes)
    alone = any(f.devices * f.model > 1 for f in plan.fragments) or any(
        reduced(c) and plan.fragments[c.source].replicas > 1 for c in plan.channels
    )
    return plan if alone or there < 1 or asked <= there else replace(plan, sharing=math.ceil(asked / int(there)))


def check_capacity(plan: Plan, nodes: list[Resources]) -> None:
    """Refuse a plan that no nodes have room for; `nodes` are the resources that each has left."""
    left = [dict(node) for node in nodes]
    wanted = [(i, asked_of(plan, i, r)) for i, f in enumerate(plan.fragments) for r in range(f.replicas)]
    for fragment, asked in sorted(wanted, key=lambda one: -sum(one[1].values())):
        fits = [node for node in left if all(node.get(kind, 0.0) >= amount for kind, amount in asked.items())]
        if not fits:
            each = [(f.replicas, f.title, told(asked_of(plan, i, 0))) for i, f in enumerate(plan.fragments)]
            shares = ", ".join(f"{replicas} × {title} with {needed} each" for replicas, title, needed in each)
            raise NoCapacity(
                f"the cluster has no room for this plan. Asked: {shares}. Available: {nodes_in_words(nodes)}. "
                "Use fewer replicas, add nodes, or wait for other jobs",
                fragment,
            )
        for kind, amount in asked.items():
            fits[0][kind] -= amount


def fitted(plan: Plan, nodes: list[Resources]) -> Plan:
    """The plan, or the same with as many replicas as there is room for; refused if one of each is too many.

    The largest are placed first. So only fewer replicas of those that ask for at least as much as the one that found
    no place can help it: of these the fragment that has the most loses one, and so on.
    """
    while True:
        try:
            check_capacity(plan, nodes)
            return plan
        except NoCapacity as stuck:
            sizes = [sum(asked_of(plan, i, 0).values()) for i in range(len(plan.fragments))]
            helping = [i for i, size in enumerate(sizes) if size >= sizes[stuck.fragment]]
            helping.sort(key=lambda i, plan=plan: -plan.fragments[i].replicas)  # type: ignore[misc]
            smaller = next((found for i in helping if (found := with_fewer(plan, i)) is not None), None)
            if smaller is None:
                raise
            plan = smaller


def told(found: Resources) -> str:
    """Resources in words."""
    kinds = [kind for kind in ("CPU", "GPU") if kind == "CPU" or found.get(kind)]
    return " and ".join(f"{found.get(kind, 0.0):g} {kind}" for kind in kinds)


def nodes_in_words(nodes: list[Resources]) -> str:
    """What every node has, in words."""
    return "; ".join(f"node {k}: {told(node)}" for k, node in enumerate(nodes)) or "no node"
