"""The table of pairs: every algorithm under every policy, found by planning and projecting each of them."""

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
from tessera.planning.prepare import prepare_plan
from tessera.program.project import project

ENV = "gymnax:CartPole-v1"


@dataclass(frozen=True)
class Pair:
    """One algorithm under one policy."""

    algorithm: str
    policy: str
    refused: str = ""
    """Why it does not run; empty if it does."""


def variants() -> Iterator[tuple[str, Policy]]:
    """Every named policy, and again for each other mode and flag that it takes: (how to write it, the policy)."""
    for name in policies.names():
        maker = policies.maker(name)
        usual, kinds = policies.options(maker), typing.get_type_hints(maker)
        yield name, policies.get(name)
        for option, default in usual.items():
            others = [m for m in MODES if m != default] if option == "mode" else []
            others += [str(not default).lower()] if kinds.get(option) is bool else []
            for value in others:
                text = f"{name}:{option}={value}"
                try:
                    yield text, policies.parse(text)
                except TesseraError:  # no such mode: not a policy, so there is no pair to speak of
                    continue


def check(algorithm: Any, env: Any, policy: Policy) -> str:
    """Plan the pair and project its program onto every fragment; why that cannot be done, or nothing."""
    try:
        bound, made, plan = prepare_plan(algorithm, env, policy)
        training = make_training(plan, bound, made)
        make_routes(plan, bound)
        for index in range(len(plan.fragments)):
            project(training.start(), plan, index)
            project(training.updates(), plan, index)
    except TesseraError as error:
        return str(error)
    return ""


def all_pairs(env: Any = ENV) -> list[Pair]:
    """Every pair, in the order of policies."""
    made = {name: algorithms.get(name)() for name in algorithms.ALGORITHMS}
    return [
        Pair(name, text, check(algorithm, env, policy))
        for text, policy in variants()
        for name, algorithm in made.items()
    ]


def render(pairs: Sequence[Pair], form: str = "table") -> str:
    """The table in a named format."""
    if form not in FORMATS:
        raise unknown_name("format", form, FORMATS)
    return FORMATS[form](pairs)


def _cells(pairs: Sequence[Pair]) -> tuple[list[list[str]], list[str]]:
    """A row for each policy and a column for each algorithm; reasons are numbered, and listed once."""
    names = list(dict.fromkeys(p.algorithm for p in pairs))
    reasons = list(dict.fromkeys(p.refused for p in pairs if p.refused))
    said = {(p.policy, p.algorithm): f"no [{reasons.index(p.refused) + 1}]" if p.refused else "runs" for p in pairs}
    rows = [["policy", *names]]
    rows += [[policy, *(said[policy, name] for name in names)] for policy in dict.fromkeys(p.policy for p in pairs)]
    return rows, [f"[{k}] {reason}" for k, reason in enumerate(reasons, 1)]


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
    told = [{"algorithm": p.algorithm, "policy": p.policy, "runs": not p.refused, "reason": p.refused} for p in pairs]
    return json.dumps(told, indent=2)


FORMATS: dict[str, Callable[[Sequence[Pair]], str]] = {"table": _table, "markdown": _markdown, "json": _json}
