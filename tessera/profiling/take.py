"""Taking a profile: probes in processes like those of replicas, then one short run on processes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from tessera.algorithms.contract import Algorithm
from tessera.engines.driver.pool import PooledProcess, assign, start_process, wait_for_any
from tessera.engines.replica.replica import make_training, wide_numbers
from tessera.engines.simulated.costs import Costs, LinkCosts, Timing, node_name, op_name, ops_in, work_kind
from tessera.engines.simulated.programs import work_in
from tessera.envs.base import Environment
from tessera.errors import TesseraError
from tessera.graph.plan import Plan
from tessera.graph.plan_changes import planned_again
from tessera.graph.policy import Fragment, Policy
from tessera.profiling import Bar, Progress
from tessera.profiling.contention import measure_slowdown
from tessera.profiling.probe import MessageTime, Probed, ProbeJob, probed_from_json
from tessera.profiling.profile import Profile, about, circumstances, find_profile, save_profile, this_machine
from tessera.profiling.trial_run import trial_run
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
    messages: list[MessageTime] = field(default_factory=list)
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
        self.messages += [replace(m, seconds=m.seconds * found.speed) for m in found.messages]
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
    tell("one run on processes")
    trial = in_two(plan, ALTERNATING)
    ran = trial_run(trial, algorithm, env, costs, begun + seconds) if trial is not None else None
    if ran is not None:
        costs = replace(costs, wake=ran.wake, process_memory=min(ran.process_bytes.values()))
    progress("done", 1.0)
    return Profile(
        costs,
        this_machine(),
        about(algorithm, env, plan),
        circumstances(),
        taken=time.time(),
        seconds=time.monotonic() - begun,
        start_seconds=ran.start_seconds if ran else 0.0,
        compile_seconds=findings.compile_seconds,
        process_bytes=ran.process_bytes if ran else {},
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


def replan(plan: Plan, policy: Policy) -> Plan | None:
    """The plan of another policy that learns the same, with environments, groups and lag as they are; None: none is."""
    devices = max(f.devices * f.model for f in plan.fragments)
    engine = "local" if policy.several else "serial"
    try:
        return planned_again(plan, policy, reason="to be timed", engine=engine, available=devices)
    except TesseraError:
        return None


def split_plans(plan: Plan) -> Iterator[Plan | None]:
    """Plans with two fragments, and of peers, by how much they tell: with two replicas, and with as many as can be."""
    most = max((n for n in range(1, plan.groups + 1) if plan.groups % n == 0 and n <= 4 * cores()), default=1)
    few = min(2, most)
    players, steppers, workers = SPLITS
    yield in_two(plan, players, few)
    if few > 1:
        yield in_one(plan, few)
    if most > few:
        yield in_two(plan, players, most)
    yield in_two(plan, steppers, few)
    yield in_two(plan, workers, few)
    if most > few:
        yield in_two(plan, steppers, most)
        yield in_two(plan, workers, most)
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
    messages = [replace(m, seconds=m.seconds / usual) for m in findings.messages]
    costs = Costs(ops=ops, links=link_costs(messages), timings=timings, per_node=per_node)
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


def link_costs(messages: list[MessageTime]) -> LinkCosts:
    """What a message and a byte cost at each end: the line nearest to all that were timed, of which neither is less
    than nothing."""
    if not messages:
        return LinkCosts()
    sizes = np.array([(m.links, m.nbytes) for m in messages], float)
    seconds = np.array([m.seconds for m in messages])
    (message, byte), *_ = np.linalg.lstsq(sizes, seconds, rcond=None)
    if message < 0:
        message, byte = 0.0, float(seconds.sum() / sizes[:, 1].sum())
    if byte < 0:
        message, byte = float(seconds.sum() / sizes[:, 0].sum()), 0.0
    return LinkCosts(cpu_per_message=float(message), cpu_per_byte=float(byte))
