"""A ranking as text: a table with a paragraph below it, or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from tessera.errors import unknown_name
from tessera.planning.explain import explanation
from tessera.planning.ranking import Candidate, Ranking

MB = 2**20
SHOWN = 5
"""Reasons why colourings are not possible that are shown."""


def render_ranking(ranking: Ranking, form: str = "table") -> str:
    """Render a ranking in a named format."""
    if form not in RANKING_FORMATS:
        raise unknown_name("format", form, RANKING_FORMATS)
    return RANKING_FORMATS[form](ranking)


def _table(ranking: Ranking) -> str:
    plan = ranking.best.plan
    head = (
        f"plans     {plan.algorithm} on {plan.env}, {plan.envs} environments in {plan.groups} groups, lag {plan.lag}: "
        "all of these learn the same"
    )
    parts = [head, *([f"on        {ranking.where}"] if ranking.where else []), "", _rows(ranking, ranking.candidates)]
    if ranking.other_recipes:
        title = "another recipe: nobody waits, so that what is learned from is older, and learning differs"
        parts += ["", title, "", _rows(ranking, ranking.other_recipes, lag=True)]
    parts += ["", explanation(ranking)]
    if ranking.refused:
        parts += ["", "not possible here", *_refusals(ranking)]
    return "\n".join(parts)


def _refusals(ranking: Ranking) -> list[str]:
    """Colourings that are left out, those with one reason together."""
    reasons: dict[str, list[str]] = {}
    for each in ranking.refused:
        reasons.setdefault(each.reason, []).append(each.colouring)
    lines = []
    for reason, names in list(reasons.items())[:SHOWN]:
        others = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
        lines.append(f"  {names[0]}{others}: {reason}")
    more = len(reasons) - SHOWN
    return lines + ([f"  and {more:,} more reasons"] if more > 0 else [])


def _rows(ranking: Ranking, candidates: Sequence[Candidate], lag: bool = False) -> str:
    extra = ranking.objective.unit if ranking.objective.name != "throughput" else ""
    heads = ["", "plan", *([extra] if extra else []), "steps/s", "interval", *(["lag"] if lag else [])]
    rows = [[*heads, "bottleneck", "MB a process", "why not"]]
    for k, c in enumerate(candidates, 1):
        value = [_number(ranking.objective.value(c.prediction))] if extra else []
        busy = c.prediction.busy[c.prediction.bottleneck]
        rows.append(
            [
                *(str(k), c.policy.name, *value, f"{c.steps_per_second:,.0f}", f"{c.low:,.0f}–{c.high:,.0f}"),
                *([f"{c.lag:.1f}"] if lag else []),
                f"{c.prediction.bottleneck} {busy:.0%}",
                ", ".join(f"{(f.process + f.device) / MB:,.0f}" for f in c.footprints),
                c.why or "the best",
            ]
        )
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _number(value: float) -> str:
    return f"{value:,.1f}" if value >= 10 else f"{value:.3g}"


def _json(ranking: Ranking) -> str:
    return json.dumps({**ranking.to_json(), "explanation": explanation(ranking)}, indent=2)


RANKING_FORMATS: dict[str, Callable[[Ranking], str]] = {"table": _table, "json": _json}
