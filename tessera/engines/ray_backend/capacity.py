"""Whether the nodes of a cluster have room for a plan, and for how many of its replicas."""

from __future__ import annotations

import math
from dataclasses import replace

from tessera.engines.base import NoCapacity
from tessera.graph.channel import Channel
from tessera.graph.disciplines import Sync
from tessera.graph.plan import Plan
from tessera.graph.smaller_plans import with_fewer
from tessera.graph.streams import RouteKind

Resources = dict[str, float]


def is_all_reduce(channel: Channel) -> bool:
    """Whether a channel is an all-reduce in which every peer waits for all: jax.distributed does that."""
    return _waits_for_all_peers(channel) and channel.route is RouteKind.MEAN


def is_all_gather(channel: Channel) -> bool:
    """Whether a channel is an all-gather in which every peer waits for all."""
    return _waits_for_all_peers(channel) and channel.route is RouteKind.GATHER


def _waits_for_all_peers(channel: Channel) -> bool:
    return channel.among_peers and isinstance(channel.discipline, Sync)


def resources_of(plan: Plan, fragment: int, number: int) -> Resources:
    """Resources that one replica needs."""
    placed = plan.fragments[fragment]
    cores = float(placed.cores[number]) if placed.cores else 1.0
    if placed.platform == "cpu":
        return {"CPU": cores}
    devices = placed.devices * placed.model
    portion = math.floor(1e4 / plan.sharing) / 1e4  # Ray counts in ten-thousandths
    return {"CPU": cores, "GPU": float(devices) if devices > 1 else portion}


def with_shared_gpus(plan: Plan, nodes: list[Resources]) -> Plan:
    """The plan; its replicas share GPUs, as processes of one machine do, if there are fewer GPUs than replicas.

    Replicas that all-reduce cannot share: NCCL needs a GPU for each of them.
    """
    needed = sum(f.replicas * f.devices * f.model for f in plan.fragments if f.platform != "cpu")
    available = sum(node.get("GPU", 0.0) for node in nodes)
    cannot_share = any(f.devices * f.model > 1 for f in plan.fragments) or any(
        is_all_reduce(c) and plan.fragments[c.source].replicas > 1 for c in plan.channels
    )
    if cannot_share or available < 1 or needed <= available:
        return plan
    return replace(plan, sharing=math.ceil(needed / int(available)))


def check_capacity(plan: Plan, nodes: list[Resources]) -> None:
    """Refuse a plan that does not fit; `nodes` has the free resources of each node."""
    free = [dict(node) for node in nodes]
    replicas = [(i, resources_of(plan, i, r)) for i, f in enumerate(plan.fragments) for r in range(f.replicas)]
    for fragment, needed in sorted(replicas, key=lambda replica: -sum(replica[1].values())):
        fits = [node for node in free if all(node.get(kind, 0.0) >= amount for kind, amount in needed.items())]
        if not fits:
            raise NoCapacity(
                f"the cluster has no room for this plan. Asked: {describe_needs(plan)}. "
                f"Available: {describe_nodes(nodes)}. Use fewer replicas, add nodes, or wait for other jobs",
                fragment,
            )
        for kind, amount in needed.items():
            fits[0][kind] -= amount


def plan_that_fits(plan: Plan, nodes: list[Resources]) -> Plan:
    """The plan, or the same with as many replicas as fit; refused if one of each does not.

    The largest replicas are placed first. So the one that does not fit gets room only from replicas that need at least
    as much: of their fragments, the one with the most replicas loses one, and so on.
    """
    while True:
        try:
            check_capacity(plan, nodes)
            return plan
        except NoCapacity as error:
            sizes = [sum(resources_of(plan, i, 0).values()) for i in range(len(plan.fragments))]
            helpful = [i for i, size in enumerate(sizes) if size >= sizes[error.fragment]]
            helpful.sort(key=lambda i, plan=plan: -plan.fragments[i].replicas)  # type: ignore[misc]
            smaller = next((reduced for i in helpful if (reduced := with_fewer(plan, i)) is not None), None)
            if smaller is None:
                raise
            plan = smaller


def describe_resources(resources: Resources) -> str:
    """Resources in words."""
    kinds = [kind for kind in ("CPU", "GPU") if kind == "CPU" or resources.get(kind)]
    return " and ".join(f"{resources.get(kind, 0.0):g} {kind}" for kind in kinds)


def describe_nodes(nodes: list[Resources]) -> str:
    """The resources of every node in words."""
    return "; ".join(f"node {k}: {describe_resources(node)}" for k, node in enumerate(nodes)) or "no node"


def describe_needs(plan: Plan) -> str:
    """What all replicas of a plan need, in words."""
    each = [(f.replicas, f.title, describe_resources(resources_of(plan, i, 0))) for i, f in enumerate(plan.fragments)]
    return ", ".join(f"{replicas} × {title} with {needed} each" for replicas, title, needed in each)
