"""Programs for virtual time: what is left to the engine, and what it has to know of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from tessera.channels.routes import Route
from tessera.engines.simulated.costs import Costs, op_name, ops_in
from tessera.engines.simulated.tokens import TOKENS, TokenShards
from tessera.errors import unknown_name
from tessera.graph.plan import Plan
from tessera.program.nodes import WIRING, Deferred, Every, Node, Op, Repeat, Segment, Send
from tessera.program.training_program import Training

Value = TypeVar("Value")


def with_costs(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The program, with every segment and every Op left to the engine, and no values to stack.

    The engine is also asked before anything is sent: it has to be there.
    """
    out: list[Node] = []
    for node in nodes:
        match node:
            case Segment() | Op():
                out.append(Deferred((node,)))
            case Send():
                out += [Deferred((node,)), node]
            case Repeat():
                out.append(replace(node, body=with_costs(node.body), stacks={}))
            case Every():
                out.append(replace(node, body=with_costs(node.body)))
            case _:
                out.append(node)
    return tuple(out)


def without_costs(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes of a loop's body as other engines have them."""
    out: list[Node] = []
    for node in nodes:
        match node:
            case Deferred(nodes=(Send(),)):
                pass
            case Deferred(nodes=(inner,)):
                out.append(inner)
            case _:
                out.append(node)
    return tuple(out)


def work_in(nodes: tuple[Node, ...]) -> Iterator[Segment | Op]:
    """Segments and Ops that a compiled program calls, also those in loops, but for Ops that only pass values on."""
    for node in nodes:
        match node:
            case Repeat() | Every():
                yield from work_in(node.body)
            case Segment():
                yield node
            case Op(kind=kind) if kind != WIRING:
                yield node


def applies(nodes: tuple[Node, ...]) -> tuple[int, int]:
    """Gradients that nodes apply: so many, and so many more for each turn of a loop without a number of its own."""
    once, each_turn = 0, 0
    for node in nodes:
        if isinstance(node, Repeat):
            inner = applies(node.body)
            once += (node.count or 0) * inner[0]
            each_turn += inner[0] if node.count is None else node.count * inner[1]
        elif isinstance(node, Op):
            once += node.operator == "apply" and "gradients" in node.reads and node.writes == ("state",)
    return once, each_turn


def with_names_of(training: Training, costs: Costs) -> Costs:
    """Costs by the names that Ops have in a program whose gradients are applied one by one, or in one memory.

    There the statistics that `apply` absorbs come in another slot. The work is the same, and profiles are taken of
    programs whose gradients are applied together.
    """
    together = replace(training, solo=False, exchange="")
    pairs = zip(ops_in((together.learn(),)), ops_in((training.learn(),)), strict=True)
    names = {op_name(known): op_name(own) for known, own in pairs if op_name(known) != op_name(own)}
    if not names:
        return costs
    pattern = re.compile(rf"(?:^|(?<=; )|(?<=\())({'|'.join(map(re.escape, names))})(?=;|\)|$)")

    def renamed(table: Mapping[str, Value]) -> dict[str, Value]:
        return {pattern.sub(lambda found: names[found[1]], name): value for name, value in table.items()}

    return replace(costs, ops=renamed(costs.ops), timings=renamed(costs.timings), after_wait=renamed(costs.after_wait))


def check_names(costs: Costs, training: Training) -> None:
    """Refuse costs of Ops that there are not; one that hands params on is another where acting trails behind."""
    known = {op_name(op) for lag in (0, 1) for op in ops_in(replace(training, lag=lag).updates())}
    for name in costs.ops:
        if name not in known:
            raise unknown_name("Op in the costs", name, sorted(known))


def with_tokens(route: Route, plan: Plan) -> Route:
    """The route, for tokens."""
    server = plan.fragments[plan.home("apply")]
    shards: Any = TokenShards(server.replicas) if route.shards is not None else None
    return replace(route, values=TOKENS, shards=shards)
