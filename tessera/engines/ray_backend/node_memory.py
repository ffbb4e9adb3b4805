"""Replicas of one node share memory as on one machine: which links are made of it, and who holds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from tessera.channels.link import LinkSpec
from tessera.channels.rings import ArenaLayout, lay_out
from tessera.channels.rpc.wire import Name
from tessera.graph.plan import Plan


def links_within_nodes(link_specs: dict[Name, LinkSpec], nodes: Sequence[str]) -> dict[str, dict[Name, LinkSpec]]:
    """Node -> links all of whose ends are on it; `nodes` has that of every place."""
    found: dict[str, dict[Name, LinkSpec]] = {}
    for name, spec in link_specs.items():
        there = {nodes[place] for place in spec.places}
        if len(there) == 1 and len(set(spec.places)) > 1:
            found.setdefault(there.pop(), {})[name] = spec
    return found


class NodeMemory:
    """The memory that replicas of one node share: each that is at an end of a link in it holds it open."""

    def __init__(self, plan: Plan, link_specs: dict[Name, LinkSpec], nodes: Sequence[str]) -> None:
        """`nodes` has the node of every place."""
        self._alone = lay_out(plan, {}, None)
        self._shared = {
            node: lay_out(plan, found, None) for node, found in links_within_nodes(link_specs, nodes).items()
        }
        self._nodes = list(nodes)

    def open(self, handles: dict[int, Any], seconds: float) -> None:
        """Make the memory of each node and hand it out; nodes where that fails do without, as if all were apart."""
        for node, layout in list(self._shared.items()):
            first, *others = self._beside(layout)
            try:
                where = ray.get(handles[first].lend.remote(layout.size), timeout=seconds)
                opened = where and all(ray.get([handles[p].borrow.remote(where) for p in others], timeout=seconds))
            except RayError:  # one has died or did not start, which is noticed elsewhere
                opened = False
            if not opened:
                del self._shared[node]

    def layout(self, place: int) -> ArenaLayout:
        """Where everything lies in the memory that a place shares, or in its own."""
        shared = self._shared.get(self._nodes[place])
        return shared if shared is not None and place in self._beside(shared) else self._alone

    def admit(self, place: int, node: str, handles: dict[int, Any], seconds: float) -> bool:
        """Have whoever takes a dead one's place share its memory; False if it cannot, as its node or all others are
        lost."""
        layout = self.layout(place)
        if not layout.links:
            return True
        if node != self._nodes[place]:
            return False
        asked = [handles[p].memory.remote() for p in self._beside(layout) if p != place]
        while asked:
            answered, asked = ray.wait(asked, timeout=seconds)
            where = _given(answered)
            if where is not None:
                handles[place].borrow.remote(where)
            if where is not None or not answered:
                return where is not None
        return False

    @staticmethod
    def _beside(layout: ArenaLayout) -> list[int]:
        """Places at an end of a link in a memory."""
        return sorted({place for wire in layout.links.values() for place in wire.spec.places})


def _given(answered: list[Any]) -> tuple[int, int, int] | None:
    """Where one that was asked has the memory; None if it has none yet, or has died."""
    try:
        return ray.get(answered[0]) if answered else None
    except RayError:
        return None
