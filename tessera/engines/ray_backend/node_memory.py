"""Memory that replicas of one node share, as on one machine: which links use it, and which replicas hold it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError

from tessera.channels.link import LinkSpec
from tessera.channels.link_specs import links_of_places
from tessera.channels.rings import ArenaLayout, lay_out
from tessera.channels.rpc.fan_out import PlacedCredits, buffers_of_nodes
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
    """The shared memory of every node.

    Each replica at an end of a link within its node holds that memory open, and so does each that gets messages of
    other nodes together with others.
    """

    def __init__(self, plan: Plan, link_specs: dict[LinkName, LinkSpec], nodes: Sequence[str]) -> None:
        """`nodes` has the node of every place."""
        self._plan, self._nodes = plan, list(nodes)
        self._private = lay_out(plan, {}, None)
        self._link_specs, self._links_of = link_specs, links_of_places(link_specs)
        self._links = links_within_nodes(link_specs, nodes)
        self._buffers = buffers_of_nodes(link_specs, nodes)
        self._shared: dict[str, ArenaLayout] = {}
        """Node -> the layout of its memory."""
        self._holders: set[int] = set()
        """Places that exchange messages through the memory of their node."""
        self._sharing: set[int] = set()
        """Those of them that get messages and credits of other nodes for each other."""
        self._groups: dict[int, dict[LinkName, tuple[tuple[int, ...], ...]]] = {}
        """Place -> links that it writes -> readers that share the memory of another node."""

    def create(self, actors: dict[int, Any], seconds: float) -> None:
        """Create the memory of each node and attach its replicas; where that fails, links are as between nodes."""
        for node in {**self._links, **self._buffers}:
            links, buffers = self._links.get(node, {}), self._buffers.get(node, {})
            credits = self._credits_of({place for buffer in buffers.values() for place in buffer.places}, node)
            layouts = [lay_out(self._plan, links, None, buffers, credits), lay_out(self._plan, links, None)]
            for layout in layouts if buffers else layouts[1:]:  # where memory is scarce, links within the node have it
                if layout.is_shared and self._create(layout, actors, seconds):
                    self._shared[node] = layout
                    self._holders |= set(_places(layout))
                    break
        for node, layout in self._shared.items():
            self._sharing |= {place for buffer in layout.buffers.values() for place in buffer.places}
            for name, buffer in layout.buffers.items():
                writer = buffer.spec.writer
                if self._nodes[writer] != node:
                    of_writer = self._groups.setdefault(writer, {})
                    of_writer[name] = (*of_writer.get(name, ()), buffer.readers)

    def _credits_of(self, places: set[int], node: str) -> dict[LinkName, PlacedCredits]:
        """Links of these places with readers on other nodes, whose credits may come to any of them."""
        found = {}
        for place in sorted(places):
            for name, spec in self._links_of[place].items():
                if spec.writer == place and not spec.register and {self._nodes[r] for r in spec.readers} != {node}:
                    found[name] = PlacedCredits(0, place, len(spec.readers))
        return found

    def _create(self, layout: ArenaLayout, actors: dict[int, Any], seconds: float) -> bool:
        """Create the memory of one node and attach its replicas; whether that worked."""
        first, *others = _places(layout)
        try:
            handle = ray.get(actors[first].create_memory.remote(layout.size), timeout=seconds)
            if not handle:
                return False
            return all(ray.get([actors[p].attach_memory.remote(handle) for p in others], timeout=seconds))
        except RayError:  # a replica has died or did not start, which the supervisor notices
            return False

    def layout(self, place: int) -> ArenaLayout:
        """The layout of the memory that a place shares, or of its private memory."""
        shared = self._shared[self._nodes[place]] if place in self._holders else self._private
        linked = {p for spec in self._links_of.get(place, {}).values() for p in spec.places}
        mates: dict[str, list[int]] = {}
        for other in sorted(linked & self._sharing):
            if self._nodes[other] != self._nodes[place]:
                mates.setdefault(self._nodes[other], []).append(other)
        groups = tuple(tuple(own) for own in mates.values() if len(own) > 1)
        return replace(shared, groups=self._groups.get(place, {}), mates=groups)

    def attach_successor(self, place: int, node: str, actors: dict[int, Any], seconds: float) -> bool:
        """Attach a successor to the memory of its place; False if its node or all other holders are lost."""
        layout = self.layout(place)
        if not layout.is_shared:
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
    """Places that exchange messages through a memory."""
    links = {place for link in layout.links.values() for place in link.spec.places}
    return sorted(links | {place for buffer in layout.buffers.values() for place in buffer.places})


def _memory_handle(ready: list[Any]) -> tuple[int, int, int] | None:
    """The handle that a replica has answered with; None if it does not hold the memory yet, or has died."""
    try:
        return ray.get(ready[0]) if ready else None
    except RayError:
        return None
