"""`tessera simulate`: how a plan would run, on this machine or on a cluster, without running it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tessera.cli.options import parse_arguments, plan_arguments, policy_of
from tessera.errors import TesseraError
from tessera.support.machine import cores
from tessera.support.sizes import size_in_words


@dataclass
class SimulateOptions:
    """What to simulate on, and what to write."""

    cluster: str | None = None
    """Cluster file (.toml): kinds of nodes that the plan is placed on; default: this machine."""
    costs: str | None = None
    """Costs file (.json): what was measured on another machine; default: the profile of this one."""
    updates: int | None = None
    """Updates to simulate; default: so many that every replica is heard 20 times."""
    trace: str | None = None
    """Write a timeline for ui.perfetto.dev, in the format of `tessera train --trace`."""
    format: str = "table"
    """table or json."""


def simulate_command(arguments: list[str]) -> None:
    """Run `tessera simulate`."""
    world, options, algorithm = parse_arguments("simulate", arguments, SimulateOptions)
    if options.format not in ("table", "json"):
        raise TesseraError(f"--format {options.format}: table or json")
    from tessera.planning.cluster_file import load_cluster
    from tessera.planning.prepare import prepare_plan
    from tessera.planning.simulate import on_accelerators, simulate, with_calls_of_ray
    from tessera.profiling.ray_calls import saved_calls

    cluster = None if options.cluster is None else load_cluster(Path(options.cluster))
    trace = None if options.trace is None else _writable(Path(options.trace))
    planned = {**plan_arguments(world), **({} if cluster is None else {"engine": "ray"})}
    bound, env, plan = prepare_plan(algorithm, world.env, policy_of(world), **planned)
    costs, accelerators = _find_costs(world, algorithm, bound, env, plan, options)
    if cluster is not None:
        costs = with_calls_of_ray(costs, saved_calls() if options.costs is None else None)
        if accelerators and any(kind.accelerators for kind in cluster.kinds):
            plan = on_accelerators(plan)
    simulation = simulate(
        plan,
        bound,
        env,
        costs,
        cores=cores(),
        accelerators=accelerators,
        cluster=cluster,
        updates=options.updates,
        trace=trace,
    )
    print(json.dumps(as_json(simulation), indent=2) if options.format == "json" else "\n".join(table(simulation)))
    if trace is not None:
        print(f"timeline  {trace}")


def _find_costs(world: Any, algorithm: Any, bound: Any, env: Any, plan: Any, options: Any) -> tuple[Any, int]:
    """Costs, and how many accelerators they were measured with: of a file, a saved profile, or one that is taken now.

    For a cluster, that is a profile of the same with fewer environments, as many as this machine has by default.
    """
    from tessera.cli.profile import progress_bar
    from tessera.planning.automatic import profile_for_cluster
    from tessera.planning.simulate import load_costs
    from tessera.profiling.take import saved_or_taken

    if options.costs is not None:
        return load_costs(Path(options.costs))
    if options.cluster is None:
        profile = saved_or_taken(bound, env, plan, progress_bar)
    else:
        profile = profile_for_cluster(algorithm, world.env, (bound, env, plan), progress_bar, world.precision)
    return profile.costs, profile.machine.accelerators


def _writable(path: Path) -> Path:
    if path.is_dir() or not path.parent.is_dir():
        raise TesseraError(f"--trace {path}: name a file in a folder that exists")
    return path


def as_json(simulation: Any) -> dict[str, Any]:
    """Plain data: what the table shows, and more."""
    low, high = simulation.interval
    return {
        "steps_per_second": simulation.steps_per_second,
        "interval": [low, high],
        "bottleneck": simulation.first.bottleneck,
        "price_per_million_steps": simulation.price_per_million_steps,
        **{k: v for k, v in dataclasses.asdict(simulation.first).items() if k != "steps_per_second"},
    }


def table(simulation: Any) -> Iterator[str]:
    """What a user wants to know first, line by line."""
    first, deployment = simulation.first, simulation.deployment
    plan, cluster = deployment.full, deployment.cluster
    low, high = simulation.interval
    where = f"this machine: {deployment.kinds[0].cores} cores" if cluster is None else cluster.describe()
    yield f"plan      {plan.policy}: " + ", ".join(f"{f.replicas:,} × {f.title}" for f in plan.fragments)
    yield f"on        {where}"
    yield (
        f"steps/s   {simulation.steps_per_second:,.0f} [{low:,.0f}, {high:,.0f}]"
        f" ({len(simulation.predictions)} draws; {first.simulated:,} of {first.replicas:,} replicas simulated)"
    )
    yield f"updates/s {first.updates_per_second:,.3g}"
    yield f"limit     {first.bottleneck}"
    if simulation.price_per_million_steps:
        price = simulation.price_per_million_steps
        yield f"price     {price:,.3g} for a million steps ({cluster.price:,.2f} an hour)"
    for stream, flow in first.flows.items():
        if flow.lags:
            half, most = (first.lag_quantile(stream, share) for share in (0.5, 0.9))
            yield (
                f"lag       {stream}: mean {flow.lag_mean:.2f}, half within {half}, 90 % within {most}, "
                f"most {flow.lag_max:g} updates"
            )
    yield from _rows(
        ("fragment", "busy", "memory", "waits for"),
        [
            (title, f"{share:.0%}", size_in_words(first.memory[title]), _shares(first.waiting.get(title, {})))
            for title, share in first.busy.items()
        ],
    )
    yield from _rows(
        ("stream", "messages/s", "bytes/s", "queue full", "dropped"),
        [
            (
                stream,
                f"{flow.messages / first.seconds:,.1f}",
                size_in_words(flow.bytes / first.seconds),
                f"{flow.fill / max(flow.messages, 1):.0%}",
                f"{flow.dropped / first.seconds:,.1f}/s",
            )
            for stream, flow in first.flows.items()
        ],
    )
    yield from _rows(
        ("nodes", "kind", "hold", "cores busy", "sent/s", "received/s", "card busy", "memory"),
        [
            (
                f"{node.alike:,.0f}",
                node.kind,
                node.holds,
                f"{node.cores:.0%}",
                size_in_words(node.sent),
                size_in_words(node.received),
                f"{node.card:.0%}",
                f"{size_in_words(node.memory)} of {size_in_words(node.available) if node.available else '?'}",
            )
            for node in first.nodes
        ],
    )


def _rows(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    if not rows:
        return
    widths = [max(len(row[k]) for row in (head, *rows)) for k in range(len(head))]
    yield ""
    for row in (head, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _shares(waiting: dict[str, float]) -> str:
    return ", ".join(f"{slot} {share:.0%}" for slot, share in waiting.items() if share >= 0.005) or "nothing"
