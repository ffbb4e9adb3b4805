"""The search: every colouring is bounded, the most promising are simulated, and plans are put in order."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from tessera.algorithms.contract import Algorithm
from tessera.engines.simulated.cluster import Cluster
from tessera.engines.simulated.costs import Costs
from tessera.engines.simulated.machine import Machine
from tessera.engines.simulated.prediction import Prediction
from tessera.errors import TesseraError
from tessera.graph.plan import Plan
from tessera.planning.bounds import Bound, bound_of
from tessera.planning.colourings import Colouring, Limits, colourings, partitions
from tessera.planning.demands import Demands
from tessera.planning.explain import CLOSE, why_slower
from tessera.planning.footprints import footprints_of, shortage
from tessera.planning.prepare import reference_plan
from tessera.planning.ranking import THROUGHPUT, Candidate, Gain, Objective, Ranking, Refusal
from tessera.planning.simulate import T_95
from tessera.planning.workload import Workload

MOST = 20
"""Plans that are simulated."""
FEWEST = 6
"""Plans that are simulated even if no other can beat the best, so that there is something to compare it with."""
SIMILAR = 3
"""Plans with the same fragments that are simulated."""
EVENTS = 1000
"""Messages and calls of one simulation, roughly: with few in an update more updates are simulated."""
UPDATES = (3, 24)
"""The fewest and the most updates of one simulation."""
SEEDS = 3
"""Simulations of one plan that is among the best, where costs are drawn from samples."""
LEADERS = 4
"""Plans that are simulated so often; others have intervals of the same relative width."""


def search_plans(
    algorithm: Algorithm,
    env: Any,
    costs: Costs,
    machine: Machine,
    *,
    envs: int | None = None,
    groups: int | None = None,
    lag: int | None = None,
    precision: str = "f32",
    cluster: Cluster | None = None,
    **how: Any,
) -> Ranking:
    """Rank all plans of a run that learn the same; `how` are the options of `search`.

    Environments, groups and the lag are those that the run would have without a search.
    """
    planned = reference_plan(algorithm, env, envs=envs, groups=groups, lag=lag, precision=precision)
    if cluster is not None:
        return search(Workload.on_cluster(planned, costs, machine, cluster, lag), **how)
    return search(Workload(*planned, costs, machine, lag), **how)


def search(
    workload: Workload,
    *,
    allow_async: bool = False,
    asks_async: bool = False,
    alone: bool = False,
    most: int = MOST,
    objective: Objective = THROUGHPUT,
) -> Ranking:
    """Rank plans. `allow_async`: also those that do not wait for everything, apart from the others; `asks_async`: among
    the others, since the system is one that does not wait; `alone`: only plans with one process."""
    found = _Search(workload, Demands(workload), objective)
    bounded = list(found.bound(asynchronous=False, alone=alone))
    loose = list(found.bound(asynchronous=True, alone=alone)) if allow_async or asks_async else []
    if asks_async:
        candidates, others = found.simulate([*bounded, *loose], most), []
    else:
        share = most // 2 if loose else most
        candidates = found.simulate(bounded, share)
        others = found.simulate(loose, most - len(candidates))
    if not candidates:
        least = min(found.refused, key=lambda r: r.processes)
        raise TesseraError(
            f"no plan for {workload.algorithm.name} on {workload.env.name} is possible here: {least.colouring}: "
            f"{least.reason}"
        )
    best = candidates[0]
    return Ranking(
        candidates=(best, *(replace(c, why=why_slower(workload, c, best)) for c in candidates[1:])),
        other_recipes=tuple(replace(c, why=why_slower(workload, c, best)) for c in others),
        refused=tuple(found.refused),
        gains=tuple(found.gains(best)),
        bounded=len(bounded) + len(loose),
        objective=objective,
        where="" if workload.cluster is None else workload.cluster.describe(),
    )


@dataclass(frozen=True)
class _Bounded:
    colouring: Colouring
    bound: Bound


class _Search:
    """One search, and what it has found out so far."""

    def __init__(self, workload: Workload, demands: Demands, objective: Objective) -> None:
        self.workload, self.demands, self.objective = workload, demands, objective
        self.refused: list[Refusal] = []
        self._colourings: dict[str, Colouring] = {}
        """Name of a plan that was simulated -> its colouring."""

    def bound(self, asynchronous: bool, alone: bool) -> Iterable[_Bounded]:
        """Bound all colourings; one that has no plan is refused once for all numbers of replicas."""
        machine, shared = self.workload.machine, self.workload.cluster is None
        limits = Limits(self.workload.reference.groups, machine.cores, machine.accelerators, shared)
        for partition in partitions():
            for colouring in colourings(partition, limits, asynchronous):
                if (alone and colouring.processes > 1) or (not shared and colouring.processes > machine.cores):
                    continue
                try:
                    yield _Bounded(colouring, bound_of(self.workload, self.demands, colouring))
                except TesseraError as error:
                    self.refused.append(Refusal(colouring.policy().name, str(error), colouring.processes))
                    break

    def simulate(self, bounded: list[_Bounded], most: int) -> list[Candidate]:
        """Simulate in the order of bounds until none can be better than the best: the best first.

        The plan with one process is always there to be compared with.
        """
        promise = {each.colouring: self._promise(each) for each in bounded}
        ordered = sorted(bounded, key=lambda b: (b.colouring.processes > 1, -promise[b.colouring], *b.colouring.order))
        done: list[Candidate] = []
        alike: dict[Any, int] = {}
        enough = -math.inf
        """How good a plan has to promise to be, once there are some to compare it with."""
        for each in ordered:
            if len(done) >= most or (len(done) >= FEWEST and promise[each.colouring] <= enough):
                break
            partition = each.colouring.partition
            if alike.get(partition, 0) >= SIMILAR:
                continue
            candidate = self._candidate(each)
            if candidate is not None:
                alike[partition] = alike.get(partition, 0) + 1
                done.append(candidate)
                enough = _better_by(max(self.objective.better(c.prediction) for c in done), CLOSE)
        leaders = self._in_order(done)[:LEADERS] if self.workload.costs.timings else []
        again = {c.policy.name: self._again(c) for c in leaders}
        widest = max((c.high / c.steps_per_second - 1 for c in again.values()), default=0.0)
        return self._in_order([again.get(c.policy.name) or _within(c, widest) for c in done])

    def _in_order(self, done: list[Candidate]) -> list[Candidate]:
        """The best first, or the simplest of those that are as good, as far as can be predicted; then the others."""
        ordered = sorted(done, key=lambda c: -self.objective.better(c.prediction))
        if not ordered:
            return []
        least = _better_by(self.objective.better(ordered[0].prediction), -CLOSE)
        close = [c for c in ordered if self.objective.better(c.prediction) >= least]
        best = min(close, key=lambda c: (len(c.plan.places), len(c.plan.fragments)))
        return [best, *(c for c in ordered if c is not best)]

    def gains(self, best: Candidate) -> Iterable[Gain]:
        """What one more core, accelerator or replica would bring to the best plan; on a cluster, one more node."""
        machine, cluster = self.workload.machine, self.workload.cluster
        if cluster is not None:
            for k, kind in enumerate(cluster.kinds):
                kinds = (*cluster.kinds[:k], replace(kind, count=kind.count + 1), *cluster.kinds[k + 1 :])
                more = self._predict(best.plan, best.bound, cluster=replace(cluster, kinds=kinds))
                yield Gain(f"node of kind {kind.name}", more.steps_per_second)
        else:
            more = self._predict(best.plan, best.bound, cores=machine.cores + 1)
            yield Gain("core", more.steps_per_second)
            if machine.accelerators:
                more = self._predict(best.plan, best.bound, accelerators=machine.accelerators + 1)
                yield Gain("accelerator", more.steps_per_second)
        colouring, k = self._colourings[best.policy.name], best.policy.home("env")
        (replicas, devices), sizes = colouring.sizes[k], list(colouring.sizes)
        sizes[k] = replicas + 1, devices
        larger = colouring._replace(sizes=tuple(sizes))
        try:
            bound = bound_of(self.workload, self.demands, larger)
            more = self._predict(self.workload.plan(larger.policy()), bound)
        except TesseraError:  # as many as there are groups, or as there is room for, or nobody knows what it costs
            return
        yield Gain(f"replica of {best.policy.fragments[k].title}", more.steps_per_second)

    def _at_most(self, each: _Bounded) -> float:
        return self.workload.steps_per_round / each.bound.seconds if each.bound.seconds else math.inf

    def _promise(self, each: _Bounded) -> float:
        """How good it can be at the most, as the objective has it."""
        price = self.workload.least_price(each.colouring.processes)
        return self.objective.better(Prediction(self._at_most(each), 0.0, {}, {}, price_per_hour=price))

    def _candidate(self, each: _Bounded) -> Candidate | None:
        """Plan and simulate; None if there is no plan, of which the reason is kept."""
        policy = each.colouring.policy()
        self._colourings[policy.name] = each.colouring
        footprints = footprints_of(self.workload, each.colouring, self.demands.template(each.colouring))
        try:
            short = shortage(self.workload, footprints)
            if short:
                raise TesseraError(short)
            plan = self.workload.plan(policy)
            prediction = self._predict(plan, each.bound)
        except TesseraError as error:
            self.refused.append(Refusal(policy.name, str(error), each.colouring.processes))
            return None
        return Candidate(
            policy=policy,
            plan=plan,
            prediction=prediction,
            low=prediction.steps_per_second,
            high=prediction.steps_per_second,
            at_most=self._at_most(each),
            bound=each.bound,
            footprints=tuple(footprints),
        )

    def _again(self, candidate: Candidate) -> Candidate:
        """The same, from several simulations, with an interval."""
        more = [self._predict(candidate.plan, candidate.bound, seed) for seed in range(1, SEEDS)]
        speeds = [run.steps_per_second for run in (candidate.prediction, *more)]
        mean = statistics.fmean(speeds)
        margin = T_95[len(speeds)] * statistics.stdev(speeds) / math.sqrt(len(speeds))
        prediction = replace(candidate.prediction, steps_per_second=mean)
        return replace(candidate, prediction=prediction, low=max(0.0, mean - margin), high=mean + margin)

    def _predict(self, plan: Plan, bound: Bound, seed: int = 0, **there: Any) -> Prediction:
        """Simulate a plan once, there or on a machine or a cluster that has more."""
        fewest, largest = UPDATES
        updates = max(fewest, min(largest, int(EVENTS / (bound.events + 1))))
        return self.workload.simulate(plan, updates, warmup=1 + plan.lag, seed=seed, **there)


def _better_by(value: float, share: float) -> float:
    """A value of an objective that is better by a share of it."""
    return value + share * abs(value)


def _within(candidate: Candidate, width: float) -> Candidate:
    """The same, with an interval of this relative width to each side."""
    speed = candidate.steps_per_second
    return replace(candidate, low=max(0.0, speed * (1 - width)), high=speed * (1 + width))
