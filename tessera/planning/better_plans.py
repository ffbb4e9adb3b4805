"""A better plan for a run that has drifted from its prediction: the search again, with costs as the run shows them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from tessera.engines.simulated.costs import Costs, Timing
from tessera.engines.simulated.prediction import Prediction
from tessera.graph.operators import OPERATORS
from tessera.graph.plan import Plan
from tessera.planning.explain import why_best
from tessera.planning.planner import Measured, work_ratios
from tessera.planning.profile_planner import UPDATES, WARMUP
from tessera.planning.search import search
from tessera.planning.workload import Workload

GAIN = 1.15
"""How many times as fast a plan must be to be worth a change: replicas start again, and compile."""

OPERATOR = re.compile(rf"(?:^|; |\()({'|'.join(OPERATORS)}) ")
"""An operator in the name of a node."""


def better_plan(workload: Workload, plan: Plan, prediction: Prediction | None, measured: Measured) -> Plan | None:
    """The best plan by what was measured of `plan`, which was predicted so; None if that is no gain worth a change."""
    if prediction is None:
        return None
    costs = workload.costs
    for title, ratio in work_ratios(prediction, measured).items():
        costs = scaled(costs, title.split("+"), ratio)
    there = workload.machine
    if measured.other_cores is not None:
        there = replace(there, cores=max(1, there.cores - round(measured.other_cores)))
    as_it_is = replace(workload, costs=costs, machine=there)
    ranking = search(as_it_is)
    now = as_it_is.simulate(plan, UPDATES, WARMUP)
    if ranking.best.steps_per_second < GAIN * now.steps_per_second:
        return None
    return replace(ranking.best.plan, reason=why_best(ranking))


def scaled(costs: Costs, operators: Iterable[str], ratio: float) -> Costs:
    """Costs in which all that belongs to some operators alone takes so many times as long."""
    held = set(operators)

    def changes(name: str) -> bool:
        return set(OPERATOR.findall(name)) <= held

    def slower(timing: Timing) -> Timing:
        return replace(timing, calls=tuple(work.times(ratio) for work in timing.calls))

    ops = {n: tuple((e, s * ratio) for e, s in c) if changes(n) else c for n, c in costs.ops.items()}
    timings = {n: tuple(map(slower, t)) if changes(n) else t for n, t in costs.timings.items()}
    return replace(costs, ops=ops, timings=timings)
