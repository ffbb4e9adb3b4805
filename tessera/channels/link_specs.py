"""The links of a plan, before an engine makes them of anything."""

from __future__ import annotations

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
        for lane, (p, receivers) in route.lanes().items():
            by_agents = channel.route is RouteKind.AGENTS
            agents = len(plan.fragments[channel.source].agents[p]) if by_agents else 0
            specs[k, lane] = LinkSpec(
                like=message_shape(plan, shapes, channel.slot, route.carried(lane), shards, agents),
                readers=tuple(plan.place(channel.target, q) for q in receivers),
                writer=plan.place(channel.source, p),
                capacity=in_flight(discipline),
                register=isinstance(discipline, Newest),
                absent=NOT_WAITED_FOR.get(channel.stream) if plan.refills else None,
                needed=channel.stream == "experience",
                patient=mode_of(discipline) == "async" and bound_of(discipline) is None,
            )
    return specs
