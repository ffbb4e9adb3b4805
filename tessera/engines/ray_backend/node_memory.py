"""Memory that replicas of one node share, as on one machine: which links use it, and which replicas hold it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from tessera.channels.link import LinkSpec
from tessera.channels.rings import ArenaLayout, lay_out
from tessera.channels.rpc.wire import LinkName
from tessera.graph.plan import Plan


def links_within_nodes(
    link_specs: dict[LinkName, LinkSpec], nodes: Sequence[str]
) -> dict[str, dict[LinkName, LinkSpec]]:
    """Node -> links with all ends on it; `nodes` has the node of every place."""
    links: dict[str, dict[LinkName, LinkSpec]] = {}
    for name, spec in link_specs.items():
        used = {nodes[place] for place in spec.places}
        if len(used) == 1 and len(set(spec.places)) > 1:
            links.setdefault(used.pop(), {})[name] = spec
    return links


class NodeMemory:
    """The shared memory of every node. Each replica at an end of a link within its node holds that memory open."""

    def __init__(self, plan: Plan, link_specs: dict[LinkName, LinkSpec], nodes: Sequence[str]) -> None:
        """`nodes` has the node of every place."""
        self._private = lay_out(plan, {}, None)
        self._shared = {
            node: lay_out(plan, links, None) for node, links in links_within_nodes(link_specs, nodes).items()
        }
        self._nodes = list(nodes)
        self._holders = {place for layout in self._shared.values() for place in _places(layout)}
        """Places at an end of a link within their node."""

    def create(self, actors: dict[int, Any], seconds: float) -> None:
        """Create the memory of each node and attach its replicas; where that fails, links are as between nodes."""
        for node, layout in list(self._shared.items()):
            first, *others = _places(layout)
            try:
                handle = ray.get(actors[first].create_memory.remote(layout.size), timeout=seconds)
                attached = handle and all(
                    ray.get([actors[p].attach_memory.remote(handle) for p in others], timeout=seconds)
                )
            except RayError:  # a replica has died or did not start, which the supervisor notices
                attached = False
            if not attached:
                del self._shared[node]

    def layout(self, place: int) -> ArenaLayout:
        """The layout of the memory that a place shares, or of its private memory."""
        shared = self._shared.get(self._nodes[place]) if place in self._holders else None
        return self._private if shared is None else shared

    def attach_successor(self, place: int, node: str, actors: dict[int, Any], seconds: float) -> bool:
        """Attach a successor to the memory of its place; False if its node or all other holders are lost."""
        layout = self.layout(place)
        if not layout.links:
            return True
        if node != self._nodes[place]:
            return False
        pending = [actors[p].memory_handle.remote() for p in _places(layout) if p != place]
        while pending:
            ready, pending = ray.wait(pending, timeout=seconds)
            handle = _memory_handle(ready)
            if handle is not None:
                actors[place].attach_memory.remote(handle)
            if handle is not None or not ready:
                return handle is not None
        return False


def _places(layout: ArenaLayout) -> list[int]:
    """Places at an end of a link in a memory."""
    return sorted({place for link in layout.links.values() for place in link.spec.places})


def _memory_handle(ready: list[Any]) -> tuple[int, int, int] | None:
    """The handle that a replica has answered with; None if it does not hold the memory yet, or has died."""
    try:
        return ray.get(ready[0]) if ready else None
    except RayError:
        return None
