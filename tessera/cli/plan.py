"""`tessera plan`: what would run where."""

from __future__ import annotations

from dataclasses import dataclass

from tessera.cli.options import parse, placing, policy_of


@dataclass
class PlanOptions:
    """How to print."""

    format: str = "table"
    """table, mermaid or json."""


def plan_command(arguments: list[str]) -> None:
    """Print the plan."""
    world, options, algorithm = parse("plan", arguments, PlanOptions)
    from tessera.graph.draw import render
    from tessera.planning.prepare import prepare_plan

    _, _, plan = prepare_plan(algorithm, world.env, policy_of(world), **placing(world))
    print(render(plan, options.format))
