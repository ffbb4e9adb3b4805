"""Taking a profile: probes in processes like those of replicas, then one short run on processes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import nnls

from tessera.algorithms.contract import Algorithm
from tessera.engines.driver.pool import PooledProcess, assign, start_process, wait_for_any
from tessera.engines.replica.replica import make_training, wide_numbers
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
from tessera.errors import TesseraError
from tessera.graph.plan import Plan
from tessera.graph.plan_changes import planned_again
from tessera.graph.policy import Fragment, Policy
from tessera.profiling import Bar, Progress
from tessera.profiling.contention import measure_slowdown
from tessera.profiling.probe import ExchangeTime, Probed, ProbeJob, probed_from_json
from tessera.profiling.profile import Profile, about, circumstances, find_profile, save_profile, this_machine
from tessera.profiling.trial_run import TrialRun, bytes_before_arrays, find_wake, times_after_wait, trial_run
from tessera.program.compile import merge_segments
from tessera.program.nodes import Segment
from tessera.program.project import project
from tessera.support.machine import cores

BUDGET = 60.0
"""Seconds that a profile may take."""
PROBES = 0.7
"""Share of the time for probes; the rest is for a run on processes."""
LOOK_SECONDS = 0.2

WHOLE = "env act store grad apply"
ALTERNATING = ("env", "act store grad apply")
"""A message at every step, for which the other one waits."""
SPLITS = (("env act", "store grad apply"), ALTERNATING, ("env act store grad", "apply"))
"""Colourings whose fragments have the parts of all others: players and learners, steppers, and who applies."""


@dataclass
class Findings:
    """What probes have found so far."""

    timings: dict[str, dict[tuple[int, int], Timing]] = field(default_factory=dict)
    exchanges: list[ExchangeTime] = field(default_factory=list)
    ops: dict[str, tuple[int, float]] = field(default_factory=dict)
    per_node: list[float] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)
    compile_seconds: float = 0.0

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
        self.compile_seconds = max(self.compile_seconds, found.compile_seconds)
        if alone and found.timings:  # where replicas take turns, Python also looks for messages in vain
            self.per_node.append(found.per_node * found.speed)


def saved_or_taken(
    algorithm: Algorithm, env: Environment, plan: Plan, bar: Bar, *, again: bool = False, seconds: float = BUDGET
) -> Profile:
    """The saved profile of what a plan runs; or one that is taken now and saved, before a progress bar."""
    profile = None if again else find_profile(algorithm, env, plan)
    if profile is None:
        with bar() as progress:
            profile = take_profile(algorithm, env, plan, progress, seconds)
        save_profile(profile)
    return profile


def take_profile(
    algorithm: Algorithm, env: Environment, plan: Plan, progress: Progress, seconds: float = BUDGET
) -> Profile:
    """Measure what a plan's algorithm costs in its environment on this machine."""
    begun = time.monotonic()

    def tell(what: str) -> None:
        progress(what, min(1.0, (time.monotonic() - begun) / seconds))

    findings = run_all_probes(algorithm, env, plan, begun + PROBES * seconds, tell)
    if not findings.timings:
        raise TesseraError(
            f"no profile can be taken: not one update of {plan.algorithm} in {plan.env} was done within {seconds:.0f} s"
        )
    slowdown = measure_slowdown(cores(), tell)
    costs = replace(make_costs(findings, plan, algorithm, env), slowdown=slowdown)
    ran = run_trials(algorithm, env, plan, begun + seconds, tell)
    if ran:
        costs = with_waits(costs, ran, alone(findings), algorithm, env)
    progress("done", 1.0)
    return Profile(
        costs,
        this_machine(),
        about(algorithm, env, plan),
        circumstances(),
        taken=time.time(),
        seconds=time.monotonic() - begun,
        start_seconds=max((run.start_seconds for run in ran), default=0.0),
        compile_seconds=findings.compile_seconds,
        process_bytes={title: size for run in ran for title, size in run.process_bytes.items()},
    )


def run_all_probes(
    algorithm: Algorithm, env: Environment, plan: Plan, end: float, tell: Callable[[str], None]
) -> Findings:
    """Probe the plan with everything in one fragment with all threads, then all others, and each Op, with one."""
    everything = in_one(plan)
    assert everything is not None
    split = [p for p in split_plans(plan) if p is not None]
    one_thread = [*split[:1], everything, *split[1:]]
    findings = Findings()
    for threads, plans, ops in (
        (cores(), [everything], [False]),
        (1, one_thread, [p is everything for p in one_thread]),
    ):
        for tried, found in run_probes(plans, algorithm, env, threads, end, tell, ops):
            findings.add(found, tried is everything)
    return findings


def run_trials(
    algorithm: Algorithm, env: Environment, plan: Plan, end: float, tell: Callable[[str], None]
) -> list[TrialRun]:
    """Run plans with two replicas on processes, as long as there is time."""
    found: list[TrialRun] = []
    for split in SPLITS:
        tried = in_two(plan, split)
        longest = max((run.start_seconds for run in found), default=0.0)
        if tried is None or time.monotonic() + longest > end:
            continue
        tell(f"{_words(tried)} on processes")
        found.append(trial_run(tried, algorithm, env))
    return found


def with_waits(
    costs: Costs, ran: list[TrialRun], exchanges: Mapping[str, float], algorithm: Algorithm, env: Environment
) -> Costs:
    """Costs with those that only show where replicas wait for each other."""
    memory = statistics.median(bytes_before_arrays(run, algorithm, env) for run in ran)
    costs = replace(costs, after_wait=times_after_wait(costs, ran, exchanges), process_memory=int(memory))
    return replace(costs, wake=statistics.median(find_wake(costs, run, algorithm, env) for run in ran))


def alone(findings: Findings) -> dict[str, float]:
    """What exchanges take that go through one link, the largest of each kind, by name."""
    usual = statistics.median(findings.speeds)
    through_one = sorted((e for e in findings.exchanges if e.links == 1), key=lambda e: e.nbytes)
    return {e.name: e.seconds / usual for e in through_one}


def replan(plan: Plan, policy: Policy) -> Plan | None:
    """The plan of another policy that learns the same, with environments, groups and lag as they are; None: none is."""
    devices = max(f.devices * f.model for f in plan.fragments)
    engine = "local" if policy.several else "serial"
    try:
        return planned_again(plan, policy, reason="to be timed", engine=engine, available=devices)
    except TesseraError:
        return None


def split_plans(plan: Plan) -> Iterator[Plan | None]:
    """Plans with two fragments, and of peers, by how much they tell: with few replicas, and with as many as can be."""
    most = max((n for n in range(1, plan.groups + 1) if plan.groups % n == 0 and n <= 4 * cores()), default=1)
    players, steppers, workers = SPLITS
    yield in_two(plan, players)
    if most > 1:
        yield in_one(plan, 2 if most % 2 == 0 else most)
        yield in_two(plan, players, most)
    yield in_two(plan, steppers)
    yield in_two(plan, workers)
    if most > 1:
        yield in_two(plan, steppers, most)
        yield in_two(plan, workers, most)
    if most > 2:
        yield in_one(plan, most)


def in_one(plan: Plan, replicas: int = 1) -> Plan | None:
    """The plan with everything in one fragment, or in each of several peers."""
    return replan(plan, Policy("one fragment", (Fragment(WHOLE, replicas=replicas),)))


def in_two(plan: Plan, split: tuple[str, str], replicas: int = 1) -> Plan | None:
    """The plan with two fragments, of which the first is replicated."""
    first, second = split
    return replan(plan, Policy("two fragments", (Fragment(first, replicas=replicas), Fragment(second))))


def run_probes(
    plans: list[Plan], algorithm: Algorithm, env: Environment, threads: int, end: float,
    tell: Callable[[str], None], ops: list[bool],
) -> Iterator[tuple[Plan, Probed]]:  # fmt: skip
    """Probe plans in a process with so many threads, until the time is over."""
    left = list(plans)
    if time.monotonic() >= end:
        return
    placed = replace(left[0].fragments[0], threads=threads, devices=1, model=1)
    process = start_process(placed, ())
    try:
        assign(process, ProbeJob(tuple(left), algorithm, env, threads, wide_numbers(), tuple(ops)))
        while left and time.monotonic() < end:
            tell(_words(left[0]))
            wait_for_any([process], LOOK_SECONDS)
            alive = process.alive()
            for found in _received(process):
                yield left.pop(0), found
            if not alive and left:
                end_of_it = process.last_words()
                raise TesseraError(f"no profile can be taken: the process that tried {_words(left[0])} {end_of_it}")
    finally:
        process.kill()


def _received(process: PooledProcess) -> Iterator[Probed]:
    for meta, _ in process.received():
        if meta["kind"] == "probed":
            yield probed_from_json(meta["found"])
        elif meta["kind"] in ("error", "refused"):
            raise TesseraError(f"no profile can be taken: {meta['text']}")


def _words(plan: Plan) -> str:
    return " | ".join(f"{f.title}{f' x {f.replicas}' if f.replicas > 1 else ''}" for f in plan.fragments)


def make_costs(findings: Findings, plan: Plan, algorithm: Algorithm, env: Environment) -> Costs:
    """Costs from what was found: calls as they were timed, and factors for segments that were not."""
    usual = statistics.median(findings.speeds)

    def at_usual_speed(timing: Timing) -> Timing:
        return replace(timing, calls=tuple(work.times(1 / usual) for work in timing.calls))

    timings = {name: tuple(map(at_usual_speed, points.values())) for name, points in findings.timings.items()}
    ops = {name: ((envs, seconds / usual),) for name, (envs, seconds) in findings.ops.items()}
    per_node = min(findings.per_node, default=0.0) / usual
    exchanges = [replace(e, seconds=e.seconds / usual) for e in findings.exchanges]
    links, each = link_costs(exchanges), exchange_costs(exchanges)
    costs = Costs(ops=ops, links=links, exchanges=each, timings=timings, per_node=per_node)
    dispatch, factors = dispatch_and_factors(timed_segments(costs, plan, algorithm, env))
    return replace(costs, dispatch=dispatch, factors=factors)


def dispatch_and_factors(timed: list[tuple[str, float, float]]) -> tuple[float, dict[str, float]]:
    """What it costs to begin a segment, and by how much its Ops cost more in it than alone, by its kind.

    Args:
        timed: of each segment that was timed its kind, the seconds of its Ops, and those that it took.
    """
    small = sorted(whole - ops for _, ops, whole in timed if ops < whole / 2)
    dispatch = small[len(small) // 2] if small else 0.0
    factors = {}
    for kind in dict.fromkeys(kind for kind, _, _ in timed):
        large = [(ops, whole) for k, ops, whole in timed if k == kind and ops > dispatch]
        if large:
            factors[kind] = max(0.1, sum(whole - dispatch for _, whole in large) / sum(ops for ops, _ in large))
    return dispatch, factors


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

    The line has the least relative errors, so that small exchanges count as much as large ones.
    """
    if not exchanges:
        return 0.0, 0.0, 0.0
    seconds = np.array([max(e.seconds, 1e-9) for e in exchanges])
    sizes = np.array([(float(fixed), e.links, e.nbytes / 1024) for e in exchanges])
    (start, link, kilobyte), _ = nnls(sizes / seconds[:, None], np.ones(len(exchanges)))
    return float(start), float(link), float(kilobyte) / 1024
