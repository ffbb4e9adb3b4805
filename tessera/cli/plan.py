"""`tessera plan`: what would run where."""

from __future__ import annotations

from dataclasses import dataclass

from tessera.cli.options import parse_arguments, plan_arguments, policy_of


@dataclass
class PlanOptions:
    """How to print the plan."""

    format: str = "table"
    """table, mermaid or json."""


def plan_command(arguments: list[str]) -> None:
    """Run `tessera plan`."""
    world, options, algorithm = parse_arguments("plan", arguments, PlanOptions)
    from tessera import systems
    from tessera.graph.draw import render
    from tessera.planning.prepare import prepare_plan
    from tessera.runs.display import steps_of_update

    bound, _, plan = prepare_plan(algorithm, world.env, policy_of(world), **plan_arguments(world))
    drawn = render(plan, options.format)
    if options.format == "table":
        name = systems.name_in(arguments[0])
        head = [] if name in (None, plan.algorithm) else [f"system    {name}: {systems.SYSTEMS[name].summary}"]
        drawn = "\n".join([*head, drawn, steps_of_update(bound.schedule, plan)])
    print(drawn)
