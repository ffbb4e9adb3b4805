"""`tessera plan`: what would run where, or which plan would be the fastest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tessera.cli.options import WorldOptions, asks_async, parse_arguments, plan_arguments, policy_of
from tessera.cli.profile import progress_bar
from tessera.errors import TesseraError


@dataclass
class PlanOptions:
    """How to print the plan, and for --policy auto how to rank plans."""

    format: str = "table"
    """table, svg (a picture), mermaid or json."""
    allow: Literal["async"] | None = None
    """async: also rank plans in which nobody waits, apart: they learn by another recipe."""
    objective: Literal["throughput", "time", "cost"] = "throughput"
    """What --policy auto ranks by: throughput, the time to the return of the run that --like names, or with --cluster
    what a million steps cost on the nodes that a plan uses."""
    like: Path | None = None
    """A finished run of the same algorithm, settings, environments, groups and lag, for --objective time."""
    cluster: Path | None = None
    """Cluster file (.toml), for --policy auto: rank plans for its nodes, and not for this machine."""


def plan_command(arguments: list[str]) -> None:
    """Run `tessera plan`."""
    world, options, algorithm = parse_arguments("plan", arguments, PlanOptions)
    if world.policy == "auto":
        print(_ranking(world, options, algorithm, asks_async(arguments[0])))
        return
    if options.cluster is not None:
        raise TesseraError(
            "--cluster is for --policy auto: add it, or see `tessera simulate` for a policy that you name"
        )
    if options.like is not None or options.objective != "throughput" or options.allow is not None:
        raise TesseraError("--allow, --objective and --like are for --policy auto: add it, or leave them out")
    from tessera import systems
    from tessera.graph.draw import render
    from tessera.planning.automatic import prepare_automatically
    from tessera.planning.prepare import prepare_plan
    from tessera.runs.display import steps_of_update

    if policy_of(world) is None:
        found = prepare_automatically(algorithm, world.env, asked=False, steps=0, **plan_arguments(world))
        bound, plan = found.algorithm, found.plan
    else:
        bound, _, plan = prepare_plan(algorithm, world.env, policy_of(world), **plan_arguments(world))
    drawn = render(plan, options.format)
    if options.format == "table":
        name = systems.name_in(arguments[0])
        head = [] if name in (None, plan.algorithm) else [f"system    {name}: {systems.SYSTEMS[name].summary}"]
        drawn = "\n".join([*head, drawn, steps_of_update(bound.schedule, plan)])
    print(drawn)


def _ranking(world: WorldOptions, options: PlanOptions, algorithm: Any, asks: bool) -> str:
    """Plans in order, as text."""
    from tessera.errors import unknown_name
    from tessera.planning.automatic import rank_plans
    from tessera.planning.cluster_file import load_cluster
    from tessera.planning.prepare import reference_plan
    from tessera.planning.ranking import COST, THROUGHPUT, time_for
    from tessera.planning.ranking_table import RANKING_FORMATS, render_ranking
    from tessera.runs.recipes import steps_like

    if world.actors is not None:
        raise TesseraError("--policy auto chooses the number of actors too: leave out --actors, or name a policy")
    if options.format not in RANKING_FORMATS:  # before anything is measured
        raise unknown_name("format", options.format, RANKING_FORMATS)
    if (options.objective == "time") != (options.like is not None):
        raise TesseraError("--objective time needs --like RUN, a finished run of the same recipe, and --like needs it")
    cluster = None if options.cluster is None else load_cluster(options.cluster)
    if options.objective == "cost" and (cluster is None or not cluster.price):
        raise TesseraError("--objective cost needs --cluster FILE, in which every kind of nodes has a price_per_hour")
    objective = COST if options.objective == "cost" else THROUGHPUT
    if options.like is not None:
        bound, _, plan = reference_plan(algorithm, world.env, **plan_arguments(world))
        objective = time_for(steps_like(options.like, bound, plan))
    how = {"allow_async": options.allow is not None, "asks_async": asks, "objective": objective}
    ranking = rank_plans(algorithm, world.env, how, progress_bar, cluster, **plan_arguments(world))
    return render_ranking(ranking, options.format)
