"""The links of a plan, before an engine makes them of anything."""

from __future__ import annotations

from tessera.channels.link import NOT_WAITED_FOR, LinkSpec
from tessera.channels.routes import Route
from tessera.graph.plan import Plan
from tessera.program.exchange import Shards
from tessera.program.shapes import Shapes, message_shape


def make_link_specs(
    plan: Plan, routes: list[Route], shapes: Shapes, shards: Shards | None
) -> dict[tuple[int, int], LinkSpec]:
    """Every link, by channel and lane: the number of its sender, unless that has several."""
    found = {}
    for k, (channel, route) in enumerate(zip(plan.channels, routes, strict=True)):
        if channel.kind == "shared":
            continue
        for lane, (p, numbers) in route.lanes().items():
            agents = len(plan.fragments[channel.source].agents[p]) if channel.route == "agents" else 0
            found[k, lane] = LinkSpec(
                message_shape(plan, shapes, channel.slot, route.carried(lane), shards, agents),
                tuple(plan.place(channel.target, q) for q in numbers),
                plan.place(channel.source, p),
                channel.capacity + channel.lag,
                channel.kind == "register",
                NOT_WAITED_FOR.get(channel.stream) if plan.refills else None,
                channel.stream == "experience",
                channel.mode == "async" and channel.bound is None,
            )
    return found
