"""Plans as people read them: a table, a Mermaid drawing, or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from tessera.errors import unknown_name
from tessera.graph.plan import Channel, Placement, Plan
from tessera.graph.streams import STREAMS


def table(plan: Plan) -> str:
    """The plan as text: a row for each fragment and one for each channel."""
    head = [
        f"plan      {plan.algorithm} on {plan.env} under {plan.policy} ({plan.engine} engine)",
        f"reason    {plan.reason}",
        f"envs      {plan.envs} in {plan.groups} groups of {plan.envs_per_group}",
        f"lag       act uses the params of {plan.lag} update(s) ago" if plan.lag else "lag       none",
        "",
    ]
    fragments = [("fragment", "replicas", "devices", "groups per replica")]
    fragments += [(f.title, str(f.replicas), _devices(f), _shares(f)) for f in plan.fragments]
    channels = [("stream", "from", "to", "route", "rate")]
    channels += [(c.stream, *_ends(plan, c), c.route, c.rate) for c in plan.channels]
    tail = _columns(channels) if plan.channels else ["no stream is cut"]
    inside = [f"within {f.title}: {_collectives(f)} over {f.devices} devices" for f in plan.fragments if f.devices > 1]
    return "\n".join([*head, *_columns(fragments), "", *tail, *inside])


def mermaid(plan: Plan) -> str:
    """The plan as a Mermaid flowchart: fragments as boxes around operators, cut streams as thick arrows."""
    lines = ["flowchart LR"]
    for i, f in enumerate(plan.fragments):
        lines.append(f'  subgraph f{i}["{f.title} × {f.replicas}"]')
        lines += [f"    {o}" for o in f.operators]
        lines.append("  end")
    cut = {(c.stream, c.source, c.target) for c in plan.channels}
    for s in STREAMS:
        source, target = plan.home(s.source), plan.home(s.target)
        crosses = (s.name, source, target) in cut
        if s.source == s.target and not crosses:
            continue
        lines.append(f"  {s.source} {'==>' if crosses else '-->'}|{s.name}| {s.target}")
    return "\n".join(lines)


def as_json(plan: Plan) -> str:
    """The plan as JSON."""
    return json.dumps(plan.to_json(), indent=2)


FORMATS: dict[str, Callable[[Plan], str]] = {"table": table, "mermaid": mermaid, "json": as_json}


def render(plan: Plan, form: str = "table") -> str:
    """Draw the plan in a named format."""
    if form not in FORMATS:
        raise unknown_name("format", form, FORMATS)
    return FORMATS[form](plan)


def _devices(f: Placement) -> str:
    return f"{f.devices} {f.platform}"


def _shares(f: Placement) -> str:
    return " ".join(str(len(g)) for g in f.groups) if f.operators != ("apply",) else "-"


def _ends(plan: Plan, c: Channel) -> tuple[str, str]:
    a, b = plan.fragments[c.source], plan.fragments[c.target]
    return f"{a.title} × {a.replicas}", f"{b.title} × {b.replicas}"


def _collectives(f: Placement) -> str:
    return "gradients: mean, summary: gather" if "grad" in f.operators else "no exchange"


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(r[k]) for r in rows) for k in range(len(rows[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(r, widths, strict=True)).rstrip() for r in rows]
