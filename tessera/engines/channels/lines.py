"""The links of a plan, before an engine makes them of anything."""

from __future__ import annotations

from tessera.engines.channels.base import NOT_WAITED_FOR, Line
from tessera.engines.routes import Route
from tessera.graph.plan import Plan
from tessera.program.exchange import Shards
from tessera.program.shapes import Shapes, message_shape


def place_of(plan: Plan, fragment: int, number: int) -> int:
    """A replica's place among all of a plan's."""
    return sum(f.replicas for f in plan.fragments[:fragment]) + number


def make_lines(plan: Plan, routes: list[Route], shapes: Shapes, shards: Shards | None) -> dict[tuple[int, int], Line]:
    """Every link, by channel and lane: the number of its sender, unless that has several."""
    found = {}
    for k, (channel, route) in enumerate(zip(plan.channels, routes, strict=True)):
        if channel.kind == "shared":
            continue
        for lane, (p, numbers) in route.lanes().items():
            agents = len(plan.fragments[channel.source].agents[p]) if channel.route == "agents" else 0
            found[k, lane] = Line(
                message_shape(plan, shapes, channel.slot, route.carried(lane), shards, agents),
                tuple(place_of(plan, channel.target, q) for q in numbers),
                place_of(plan, channel.source, p),
                channel.capacity + channel.lag,
                channel.kind == "register",
                NOT_WAITED_FOR.get(channel.stream) if plan.refills else None,
                channel.stream == "experience",
                channel.mode == "async" and channel.bound is None,
            )
    return found
