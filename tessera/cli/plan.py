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
    from tessera.graph.draw import render
    from tessera.planning.prepare import prepare_plan

    _, _, plan = prepare_plan(algorithm, world.env, policy_of(world), **plan_arguments(world))
    print(render(plan, options.format))
