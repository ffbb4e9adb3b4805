"""The table of pairs: every algorithm under every policy, each planned and projected to see whether it runs."""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tessera import algorithms, policies
from tessera.channels.routes import make_routes
from tessera.engines.replica.replica import make_training
from tessera.errors import TesseraError, unknown_name
from tessera.graph.policy import MODES, Policy
from tessera.planning.choose import everything_together
from tessera.planning.prepare import prepare_plan
from tessera.program.project import project

TASKS = ("gymnax:CartPole-v1", "gymnax:Pendulum-v1", "jaxmarl:MPE_simple_spread_v3", "pgx:tic_tac_toe")
"""Tasks with discrete actions, with continuous ones, for several agents, and a game for two players."""


@dataclass(frozen=True)
class Pair:
    """One algorithm under one policy."""

    algorithm: str
    policy: str
    refused: str = ""
    """Why it does not run; empty if it does."""
    env: str = TASKS[0]


def variants() -> Iterator[tuple[str, Policy]]:
    """Every named policy, and its variants by mode and by each flag: (text for --policy, policy)."""
    for name in policies.names():
        maker = policies.maker(name)
        defaults, types = policies.options(maker), typing.get_type_hints(maker)
        yield name, policies.get(name)
        for option, default in defaults.items():
            values = [m for m in MODES if m != default] if option == "mode" else []
            values += [str(not default).lower()] if types.get(option) is bool else []
            for value in values:
                text = f"{name}:{option}={value}"
                try:
                    yield text, policies.parse(text)
                except TesseraError:  # the policy has no such mode
                    continue


def refusal(algorithm: Any, env: Any, policy: Policy) -> str:
    """Plan the pair and project its program onto every fragment; why it does not run, or an empty text."""
    try:
        bound, environment, plan = prepare_plan(algorithm, env, policy)
        training = make_training(plan, bound, environment)
        make_routes(plan, bound)
        for index in range(len(plan.fragments)):
            project(training.start(), plan, index)
            project(training.updates(), plan, index)
    except TesseraError as error:
        return str(error)
    return ""


def task_for(algorithm: Any) -> str:
    """A task that an algorithm can play; the first one if none of its kind is installed."""
    together = everything_together(devices=1)
    return next((task for task in TASKS if not refusal(algorithm, task, together)), TASKS[0])


def all_pairs(env: str | None = None) -> list[Pair]:
    """Every pair, in the order of policies, planned for `env`; None: for a task that the algorithm can play."""
    instances = {name: algorithms.get(name)() for name in algorithms.ALGORITHMS}
    tasks = {name: env or task_for(algorithm) for name, algorithm in instances.items()}
    return [
        Pair(name, text, refusal(algorithm, tasks[name], policy), tasks[name])
        for text, policy in variants()
        for name, algorithm in instances.items()
    ]


def render(pairs: Sequence[Pair], form: str = "table") -> str:
    """Render the table in a named format."""
    if form not in FORMATS:
        raise unknown_name("format", form, FORMATS)
    return FORMATS[form](pairs)


def _cells(pairs: Sequence[Pair]) -> tuple[list[list[str]], list[str]]:
    """A row for each policy and a column for each algorithm, and below them the reasons, numbered."""
    names = list(dict.fromkeys(p.algorithm for p in pairs))
    reasons = list(dict.fromkeys(p.refused for p in pairs if p.refused))
    cells = {(p.policy, p.algorithm): f"no [{reasons.index(p.refused) + 1}]" if p.refused else "runs" for p in pairs}
    rows = [["policy", *names]]
    rows += [[policy, *(cells[policy, name] for name in names)] for policy in dict.fromkeys(p.policy for p in pairs)]
    tasks: dict[str, list[str]] = {}
    for name in names:
        tasks.setdefault(next(p.env for p in pairs if p.algorithm == name), []).append(name)
    planned = "planned for " + "; ".join(f"{task} ({', '.join(mine)})" for task, mine in tasks.items())
    return rows, [planned, *(f"[{k}] {reason}" for k, reason in enumerate(reasons, 1))]


def _table(pairs: Sequence[Pair]) -> str:
    rows, notes = _cells(pairs)
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _markdown(pairs: Sequence[Pair]) -> str:
    (head, *rows), notes = _cells(pairs)
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    lines += [f"| `{row[0]}` | {' | '.join(row[1:])} |" for row in rows]
    return "\n".join([*lines, *([""] if notes else []), *(f"- {note}" for note in notes)])


def _json(pairs: Sequence[Pair]) -> str:
    rows = [
        {"algorithm": p.algorithm, "policy": p.policy, "env": p.env, "runs": not p.refused, "reason": p.refused}
        for p in pairs
    ]
    return json.dumps(rows, indent=2)


FORMATS: dict[str, Callable[[Sequence[Pair]], str]] = {"table": _table, "markdown": _markdown, "json": _json}
