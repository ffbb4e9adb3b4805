"""The links of a plan, before an engine makes them of anything."""

from __future__ import annotations

from typing import Any

from tessera.channels.link import NOT_WAITED_FOR, LinkSpec
from tessera.channels.routes import Route
from tessera.graph.disciplines import Newest, Shared, bound_of, in_flight, mode_of
from tessera.graph.plan import Plan
from tessera.graph.streams import RouteKind
from tessera.program.exchange import Shards
from tessera.program.shapes import Shapes, message_shape

LinkName = tuple[int, int]
"""A channel and a lane: the number of the sender, unless it has a link to each receiver."""


def make_link_specs(plan: Plan, routes: list[Route], shapes: Shapes, shards: Shards | None) -> dict[LinkName, LinkSpec]:
    """Every link of a plan."""
    specs = {}
    for k, (channel, route) in enumerate(zip(plan.channels, routes, strict=True)):
        discipline = channel.discipline
        if isinstance(discipline, Shared):
            continue
        first_writer, first_reader = plan.place(channel.source, 0), plan.place(channel.target, 0)
        alike: dict[tuple[int, int], Any] = {}
        for lane, (p, receivers) in route.lanes().items():
            by_agents = channel.route is RouteKind.AGENTS
            size = route.carried(lane), len(plan.fragments[channel.source].agents[p]) if by_agents else 0
            if size not in alike:
                alike[size] = message_shape(plan, shapes, channel.slot, size[0], shards, size[1])
            specs[k, lane] = LinkSpec(
                like=alike[size],
                readers=tuple(first_reader + q for q in receivers),
                writer=first_writer + p,
                capacity=in_flight(discipline),
                register=isinstance(discipline, Newest),
                absent=NOT_WAITED_FOR.get(channel.stream) if plan.refills else None,
                needed=channel.stream == "experience",
                patient=mode_of(discipline) == "async" and bound_of(discipline) is None,
            )
    return specs


def links_of_places(specs: dict[LinkName, LinkSpec]) -> dict[int, dict[LinkName, LinkSpec]]:
    """Place -> the links that it is at an end of."""
    found: dict[int, dict[LinkName, LinkSpec]] = {}
    for name, spec in specs.items():
        for place in spec.places:
            found.setdefault(place, {})[name] = spec
    return found
