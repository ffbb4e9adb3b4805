"""Plans as people read them: a table, a picture, a Mermaid drawing, or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from tessera.errors import unknown_name
from tessera.graph.channel import Channel
from tessera.graph.disciplines import (
    Discipline,
    FirstCome,
    InTurn,
    Shared,
    Sync,
    bound_of,
    in_flight,
    lag_of,
    mode_of,
)
from tessera.graph.draw_svg import svg
from tessera.graph.plan import Placement, Plan
from tessera.graph.streams import STREAMS


def table(plan: Plan) -> str:
    """The plan as text: a row for each fragment and one for each channel."""
    head = [
        f"plan      {plan.algorithm} on {plan.env} under {plan.policy} ({plan.engine} engine)",
        f"reason    {plan.reason}",
        f"envs      {plan.envs} in {plan.groups} groups of {plan.envs_per_group}{_learned(plan)}",
        f"lag       {_lag(plan)}",
        *([f"wrappers  {', then '.join(plan.wrappers)}"] if plan.wrappers else []),
        "",
    ]
    fragments: list[tuple[str, ...]] = [
        ("fragment", "replicas", "processes", "cores", "threads", "devices", "groups per replica")
    ]
    fragments += [_fragment(plan, f) for f in plan.fragments]
    channels: list[tuple[str, ...]] = [
        ("stream", "from", "to", "route", "rate", "kind", "mode", "lag", "capacity", "codec")
    ]
    channels += [_channel(plan, c) for c in plan.channels]
    tail = _columns(channels) if plan.channels else ["no stream is cut"]
    inside = [f"within {f.title}: {_collectives(f)} over {f.devices} devices" for f in plan.fragments if f.devices > 1]
    inside += [f"within {f.title}: wide layers are cut over {f.model} devices" for f in plan.fragments if f.model > 1]
    return "\n".join([*head, *_columns(fragments), "", *tail, *inside])


def mermaid(plan: Plan) -> str:
    """The plan as a Mermaid flowchart: fragments as boxes around operators, cut streams as thick arrows."""
    lines = ["flowchart LR"]
    for i, f in enumerate(plan.fragments):
        lines.append(f'  subgraph f{i}["{f.title} × {f.replicas}"]')
        lines += [f"    {o}" for o in f.operators]
        lines.append("  end")
    cut = {(c.slot, c.made_by, c.wanted_by): c for c in plan.channels}
    for s in STREAMS:
        channel = cut.get((s.slot, s.source, s.target))
        if channel is not None:
            mode = mode_of(channel.discipline)
            mode = "" if mode == "sync" else f", {mode}"
            lines.append(f"  {s.source} ==>|{s.name}{mode}| {s.target}")
            continue
        # act beside grad, and away from apply, uses the params that grad was sent
        apart = plan.home("act") == plan.home("grad") != plan.home("apply")
        source = "grad" if s.slot == "acting" and apart else s.source
        if source != s.target and plan.home(source) == plan.home(s.target) and s.name not in plan.unused:
            lines.append(f"  {source} -->|{s.name}| {s.target}")
    return "\n".join(lines)


def as_json(plan: Plan) -> str:
    """The plan as JSON."""
    return json.dumps(plan.to_json(), indent=2)


FORMATS: dict[str, Callable[[Plan], str]] = {"table": table, "mermaid": mermaid, "svg": svg, "json": as_json}


def render(plan: Plan, form: str = "table") -> str:
    """Draw the plan in a named format."""
    if form not in FORMATS:
        raise unknown_name("format", form, FORMATS)
    return FORMATS[form](plan)


def _learned(plan: Plan) -> str:
    return f"; an update learns from {plan.batches} groups" if plan.batches not in (0, plan.groups) else ""


def _lag(plan: Plan) -> str:
    """By how much what is acted and learned with trails behind the newest params."""
    loose = next((c for c in reversed(plan.channels) if not isinstance(c.discipline, Sync)), None)
    if loose is None:
        return f"act uses the params of {_updates(plan.lag)} ago" if plan.lag else "none"
    subject = "peers are" if loose.among_peers else "params are"
    bound = bound_of(loose.discipline)
    if bound is None:
        return f"{subject} any number of updates behind"
    return f"{subject} {_updates(bound)} behind at the most"


def _updates(count: int) -> str:
    return f"{count} update{'s' * (count != 1)}"


def _fragment(plan: Plan, f: Placement) -> tuple[str, ...]:
    processes = str(f.replicas) if plan.engine != "serial" else "this one"
    cores = f"{f.cores[0]} each" if f.cores else "shared"
    groups = " ".join(str(len(g)) for g in f.held(f.operators[0])) if f.operators != ("apply",) else "-"
    if f.agents:
        groups = f"all, for {len(f.agents[0])} of {sum(map(len, f.agents))} agents"
    return f.title, str(f.asked or f.replicas), processes, cores, str(f.threads), _devices(f), groups


def _channel(plan: Plan, c: Channel) -> tuple[str, ...]:
    mode, lag = _behaviour(c.discipline)
    capacity = str(in_flight(c.discipline)) if c.kind in ("queue", "collective", "exchange") else "-"
    codec = f"{c.codec} {c.threshold:g}" if c.codec else "-"
    route = "one by one" if isinstance(c.discipline, InTurn) else str(c.route)
    return (c.stream, *_ends(plan, c), route, c.rate, c.kind, mode, lag, capacity, codec)


def _behaviour(discipline: Discipline) -> tuple[str, str]:
    """Mode and lag of a discipline, as the table shows them."""
    match discipline:
        case Sync(batching=float() as seconds):
            return f"ready within {1000 * seconds:g} ms", str(discipline.lag)
        case Sync() | Shared():
            return "sync", str(lag_of(discipline))
        case FirstCome(first=first) if first:
            mode = f"first {first}"
        case _:
            mode = "async"
    bound = bound_of(discipline)
    return mode, "any" if bound is None else f"≤ {bound}"


def _ends(plan: Plan, c: Channel) -> tuple[str, str]:
    a, b = plan.fragments[c.source], plan.fragments[c.target]
    return f"{a.title} × {a.replicas}", f"{b.title} × {b.replicas}"


def _devices(f: Placement) -> str:
    return f"{f.devices} {f.platform}" if f.model == 1 else f"{f.devices} x {f.model} {f.platform}"


def _collectives(f: Placement) -> str:
    return "gradients: mean, summary: gather" if "grad" in f.operators else "no exchange"


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(r[k]) for r in rows) for k in range(len(rows[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(r, widths, strict=True)).rstrip() for r in rows]
