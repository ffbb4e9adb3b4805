"""From what probes have found to costs: calls as they were timed, and lines through those that were not."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import nnls

from tessera.algorithms.contract import Algorithm
from tessera.engines.replica.replica import make_training
from tessera.engines.simulated.costs import (
    Costs,
    ExchangeCosts,
    LinkCosts,
    Timing,
    node_name,
    op_name,
    ops_in,
    work_kind,
)
from tessera.engines.simulated.programs import work_in
from tessera.envs.base import Environment
from tessera.graph.plan import Plan
from tessera.profiling.probe import ExchangeTime, Probed
from tessera.profiling.tried_plans import in_one, split_plans
from tessera.program.compile import merge_segments
from tessera.program.nodes import Segment
from tessera.program.project import project


@dataclass
class Findings:
    """What probes have found so far."""

    timings: dict[str, dict[tuple[int, int], Timing]] = field(default_factory=dict)
    exchanges: list[ExchangeTime] = field(default_factory=list)
    ops: dict[str, tuple[int, float]] = field(default_factory=dict)
    dispatch: float = 0.0
    """Seconds that it takes to call a compiled program; 0: not known."""
    per_node: list[float] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)
    compile_seconds: float = 0.0
    least_seconds: float = math.inf
    """From the beginning of a probe to its first update, at the least: a run on processes takes as long, or longer."""
    process_bytes: int = 0
    """The least that a process that tried plans has held; 0: not known."""

    @property
    def usual_speed(self) -> float:
        """Of a core, while all of this was timed."""
        return statistics.median(self.speeds)

    def add(self, found: Probed, alone: bool) -> None:
        """Add those of one probe, as they would be on a machine of speed 1."""
        self.speeds.append(found.speed)
        for name, points in found.timings.items():
            for t in points:
                calls = tuple(work.times(found.speed) for work in t.calls)
                before = self.timings.setdefault(name, {}).get((t.envs, t.threads))
                both = calls if before is None else (*before.calls, *calls)
                self.timings[name][t.envs, t.threads] = replace(t, calls=both)
        self.exchanges += [replace(e, seconds=e.seconds * found.speed) for e in found.exchanges]
        self.ops |= {name: (envs, seconds * found.speed) for name, (envs, seconds) in found.ops.items()}
        self.dispatch = max(self.dispatch, found.dispatch * found.speed)
        self.compile_seconds = max(self.compile_seconds, found.compile_seconds)
        if found.compile_seconds:
            self.least_seconds = min(self.least_seconds, found.compile_seconds)
        if found.process_bytes:
            self.process_bytes = min(found.process_bytes, self.process_bytes or found.process_bytes)
        if alone and found.timings:  # where replicas take turns, Python also looks for messages in vain
            self.per_node.append(found.per_node * found.speed)


def alone(findings: Findings) -> dict[str, float]:
    """What exchanges take that go through one link, the largest of each kind, by name."""
    usual = findings.usual_speed
    through_one = sorted((e for e in findings.exchanges if e.links == 1), key=lambda e: e.nbytes)
    return {e.name: e.seconds / usual for e in through_one}


def make_costs(findings: Findings, plan: Plan, algorithm: Algorithm, env: Environment) -> Costs:
    """Costs from what was found: calls as they were timed, and factors for segments that were not."""
    usual = findings.usual_speed

    def at_usual_speed(timing: Timing) -> Timing:
        return replace(timing, calls=tuple(work.times(1 / usual) for work in timing.calls))

    timings = {name: tuple(map(at_usual_speed, points.values())) for name, points in findings.timings.items()}
    ops = {name: ((envs, seconds / usual),) for name, (envs, seconds) in findings.ops.items()}
    per_node = min(findings.per_node, default=0.0) / usual
    exchanges = [replace(e, seconds=e.seconds / usual) for e in findings.exchanges]
    links, each = link_costs(exchanges), exchange_costs(exchanges)
    costs = Costs(ops=ops, links=links, exchanges=each, timings=timings, per_node=per_node)
    dispatch = findings.dispatch / usual
    factors = kind_factors(timed_segments(costs, plan, algorithm, env), dispatch)
    return replace(costs, dispatch=dispatch, factors=factors, process_memory=findings.process_bytes)


def kind_factors(timed: list[tuple[str, float, float]], dispatch: float) -> dict[str, float]:
    """By how much Ops cost more in a segment than alone, by its kind.

    Args:
        timed: of each segment that was timed its kind, the seconds of its Ops, and those that it took.
        dispatch: what it costs to begin one; where Ops cost less than that, nothing can be told from it.
    """
    factors = {}
    for kind in dict.fromkeys(kind for kind, _, _ in timed):
        large = [(ops, whole) for k, ops, whole in timed if k == kind and ops > dispatch]
        if large:
            factors[kind] = max(0.1, sum(whole - dispatch for _, whole in large) / sum(ops for ops, _ in large))
    return factors


def timed_segments(costs: Costs, plan: Plan, algorithm: Algorithm, env: Environment) -> list[tuple[str, float, float]]:
    """Segments that were timed for all environments: kind, seconds of their Ops, and seconds that they took."""
    found: dict[str, tuple[str, float, float]] = {}
    for tried in [in_one(plan), *split_plans(plan)]:
        if tried is None:
            continue
        training = make_training(tried, algorithm, env)
        for i in range(len(tried.fragments)):
            for segment in work_in(merge_segments(project(training.updates(), tried, i))):
                if not isinstance(segment, Segment):
                    continue
                name, ops = node_name(segment), costs.seconds(segment, plan.envs, 1)
                for t in costs.timings.get(name, ()):
                    if t.envs == plan.envs and all(op_name(op) in costs.ops for op in ops_in(segment.nodes)):
                        found[name] = work_kind(segment), ops, sorted(t.calls)[len(t.calls) // 2].cpu_seconds
    return list(found.values())


def link_costs(exchanges: list[ExchangeTime]) -> LinkCosts:
    """What a message and a byte cost at each end, by all exchanges that were timed."""
    _, message, byte = nearest_line(exchanges, fixed=False)
    return LinkCosts(cpu_per_message=message, cpu_per_byte=byte)


def exchange_costs(exchanges: list[ExchangeTime]) -> dict[str, ExchangeCosts]:
    """What each kind of exchange costs."""
    kinds: dict[str, list[ExchangeTime]] = {}
    for each in exchanges:
        kinds.setdefault(each.name, []).append(each)
    return {name: ExchangeCosts(*nearest_line(timed)) for name, timed in kinds.items()}


def nearest_line(exchanges: list[ExchangeTime], fixed: bool = True) -> tuple[float, float, float]:
    """A fixed part, and parts for each link and each byte, none of which is less than nothing.

    The line has the least relative errors, so that small exchanges count as much as large ones. Where all were of one
    size, all of it is for links: nothing says that smaller ones take less.
    """
    if not exchanges:
        return 0.0, 0.0, 0.0
    seconds = np.array([max(e.seconds, 1e-9) for e in exchanges])
    several = len({(e.links, e.nbytes) for e in exchanges}) > 1
    sizes = np.array([(float(fixed and several), e.links, several * e.nbytes / 1024) for e in exchanges])
    (start, link, kilobyte), _ = nnls(sizes / seconds[:, None], np.ones(len(exchanges)))
    return float(start), float(link), float(kilobyte) / 1024
