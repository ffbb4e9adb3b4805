"""Whether the nodes of a cluster have room for a plan, and what of it they have room for."""

from __future__ import annotations

from tessera.errors import TesseraError
from tessera.graph.fewer import with_fewer
from tessera.graph.plan import Placement, Plan

Resources = dict[str, float]


class NoRoom(TesseraError):
    """Nodes have no room for a plan."""

    def __init__(self, text: str, fragment: int) -> None:
        """`fragment` is the one of which a replica finds no place."""
        super().__init__(text)
        self.fragment = fragment


def asked_of(placed: Placement, number: int) -> Resources:
    """Resources that one replica asks for."""
    cores = float(placed.cores[number]) if placed.cores else 1.0
    return {"CPU": cores} if placed.platform == "cpu" else {"CPU": cores, "GPU": float(placed.devices * placed.model)}


def check_room(plan: Plan, nodes: list[Resources]) -> None:
    """Refuse a plan that no nodes have room for; `nodes` are the resources that each has left."""
    left = [dict(node) for node in nodes]
    wanted = [(i, asked_of(f, r)) for i, f in enumerate(plan.fragments) for r in range(f.replicas)]
    for fragment, asked in sorted(wanted, key=lambda one: -sum(one[1].values())):
        fits = [node for node in left if all(node.get(kind, 0.0) >= amount for kind, amount in asked.items())]
        if not fits:
            shares = ", ".join(f"{f.replicas} × {f.title} with {told(asked_of(f, 0))} each" for f in plan.fragments)
            raise NoRoom(
                f"the cluster has no room for this plan. Asked: {shares}. Available: {told_each(nodes)}. "
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
            check_room(plan, nodes)
            return plan
        except NoRoom as stuck:
            sizes = [sum(asked_of(f, 0).values()) for f in plan.fragments]
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


def told_each(nodes: list[Resources]) -> str:
    """What every node has, in words."""
    return "; ".join(f"node {k}: {told(node)}" for k, node in enumerate(nodes)) or "no node"
