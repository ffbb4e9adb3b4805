"""Taking a profile: probes in processes like those of replicas, then short runs on processes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from tessera.algorithms.contract import Algorithm
from tessera.engines.driver.pool import PooledProcess, assign, start_process, wait_for_any
from tessera.engines.replica.replica import wide_numbers
from tessera.engines.simulated.costs import Costs
from tessera.envs.base import Environment
from tessera.errors import TesseraError
from tessera.graph.plan import Plan
from tessera.profiling import Bar, Progress
from tessera.profiling.contention import measure_slowdown
from tessera.profiling.findings import Findings, alone, make_costs
from tessera.profiling.probe import Probed, ProbeJob, probed_from_json
from tessera.profiling.profile import Profile, about, circumstances, find_profile, save_profile, this_machine
from tessera.profiling.trial_run import TrialRun, bytes_before_arrays, times_after_wait, trial_run, with_wakes
from tessera.profiling.tried_plans import SPLITS, crowded_plans, in_one, in_two, split_plans
from tessera.support.cache import caches_programs
from tessera.support.machine import cores

BUDGET = 60.0
"""Seconds that a profile may take."""
PROBES = 0.65
"""Share of the time for probes; the rest is for runs on processes."""
FEWEST_COMPILERS = 4
"""Processes that compile at a time, below which compiling ahead saves nothing."""
LOOK_SECONDS = 0.2


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
    trials = [in_two(plan, split) for split in SPLITS]
    ran, skipped = run_trials(algorithm, env, [p for p in trials if p is not None], begun + seconds, tell)
    crowd, skipped_crowd = run_trials(algorithm, env, crowded_plans(plan), begun + seconds, tell)
    if ran:
        costs = with_waits(costs, ran, alone(findings), algorithm, env)
        costs = with_wakes(costs, ran, crowd[0] if crowd else None, algorithm, env)
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
        skipped=(*findings.skipped, *skipped, *skipped_crowd),
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
    ops = [p is everything for p in one_thread]
    jobs = [
        ProbeJob((everything,), algorithm, env, cores(), wide_numbers(), (False,)),
        ProbeJob(tuple(one_thread), algorithm, env, 1, wide_numbers(), tuple(ops)),
    ]
    compile_ahead(jobs, end, tell)
    for job in jobs:
        done = 0
        for tried, found in run_probes(job, end, tell):
            findings.add(found, tried is everything)
            done += 1
        findings.skipped += map(_words, job.plans[done:])
    return findings


def compile_ahead(jobs: list[ProbeJob], end: float, tell: Callable[[str], None]) -> None:
    """Have the programs of all probes compiled side by side, where there are cores to spare: they are kept in the
    cache, from which the probes take them."""
    workers = cores() // 2
    if workers < FEWEST_COMPILERS or not caches_programs():
        return
    each = [
        replace(job, plans=job.plans[k:k + 1], ops=job.ops[k:k + 1], compiles_only=True)
        for job in jobs for k in range(len(job.plans))
    ]  # fmt: skip
    processes: list[PooledProcess] = []
    try:
        for job in each[:workers]:
            processes.append(start_prober(job))
        left = list(processes)
        while left and time.monotonic() < end:
            tell(f"{len(left)} programs are compiled")
            wait_for_any(left, LOOK_SECONDS)
            left = [p for p in left if not list(_received(p)) and p.alive()]
    finally:
        for process in processes:
            process.kill()


def run_trials(
    algorithm: Algorithm, env: Environment, plans: list[Plan], end: float, tell: Callable[[str], None]
) -> tuple[list[TrialRun], list[str]]:
    """Run plans on processes, as long as there is time; and those for which there was none."""
    found: list[TrialRun] = []
    skipped: list[str] = []
    for tried in plans:
        longest = max((run.start_seconds for run in found), default=0.0)
        if time.monotonic() + longest > end:
            skipped.append(f"{_words(tried)} on processes")
            continue
        tell(f"{_words(tried)} on processes")
        found.append(trial_run(tried, algorithm, env))
    return found, skipped


def with_waits(
    costs: Costs, ran: list[TrialRun], exchanges: Mapping[str, float], algorithm: Algorithm, env: Environment
) -> Costs:
    """Costs with those that only show where replicas wait for each other."""
    memory = statistics.median(bytes_before_arrays(run, algorithm, env) for run in ran)
    return replace(costs, after_wait=times_after_wait(costs, ran, exchanges), process_memory=int(memory))


def start_prober(job: ProbeJob) -> PooledProcess:
    """A process with a job, set up as one of a replica would be."""
    process = start_process(replace(job.plans[0].fragments[0], threads=job.threads, devices=1, model=1), ())
    assign(process, job)
    return process


def run_probes(job: ProbeJob, end: float, tell: Callable[[str], None]) -> Iterator[tuple[Plan, Probed]]:
    """Probe plans in a process, until the time is over."""
    left = list(job.plans)
    if time.monotonic() >= end:
        return
    process = start_prober(job)
    try:
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
