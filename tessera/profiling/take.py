"""Taking a profile: probes in processes like those of replicas, then short runs on processes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from tessera.algorithms.contract import Algorithm
from tessera.engines.replica.replica import wide_numbers
from tessera.engines.simulated.costs import Costs
from tessera.envs.base import Environment
from tessera.errors import TesseraError
from tessera.graph.plan import Plan
from tessera.profiling import Bar, Progress
from tessera.profiling.calibration import Calibration
from tessera.profiling.contention import measure_slowdown
from tessera.profiling.findings import Findings, alone, make_costs
from tessera.profiling.probe import ProbeJob
from tessera.profiling.probers import in_words, probe_in_turns
from tessera.profiling.profile import Profile, about, circumstances, find_profile, save_profile, this_machine
from tessera.profiling.trial_run import TrialRun, bytes_besides_arrays, trial_run
from tessera.profiling.tried_plans import in_one, is_crowded, split_plans, trial_plans
from tessera.support.machine import cores

BUDGET = 60.0
"""Seconds that a profile may take."""
PROBES = 0.65
"""Share of the time for probes; the rest is for runs on processes."""
RUNS = 0.97
"""Share of the time after which no run on processes may be under way: what they cost is then found by simulation."""


def saved_or_taken(
    algorithm: Algorithm,
    env: Environment,
    plan: Plan,
    bar: Bar,
    *,
    again: bool = False,
    complete: bool = False,
    seconds: float = BUDGET,
) -> Profile:
    """The saved profile of what a plan runs; or one that is taken now and saved, before a progress bar.

    Args:
        again: take one even if one is saved.
        complete: take one also if the saved one was cut short: what was compiled then is kept, so it gets further.
    """
    profile = None if again else find_profile(algorithm, env, plan)
    if profile is None or (complete and profile.skipped):
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

    findings = run_all_probes(algorithm, env, plan, begun + PROBES * seconds, begun + seconds, tell)
    if not findings.timings:
        raise TesseraError(
            f"no profile can be taken: not one update of {plan.algorithm} in {plan.env} was done within {seconds:.0f} s"
        )
    slowdown = measure_slowdown(cores(), tell)
    costs = replace(make_costs(findings, plan, algorithm, env), slowdown=slowdown)
    ran, skipped = run_trials(algorithm, env, trial_plans(plan), begun + RUNS * seconds, findings.least_seconds, tell)
    roomy = [run for run in ran if not is_crowded(run.plan)]
    if ran:
        calibration = Calibration(algorithm, env, findings.usual_speed)
        costs = with_memory(costs, roomy or ran, algorithm, env)
        costs = calibration.with_waits(costs, roomy or ran, alone(findings))
        costs = calibration.with_switches(costs, [run for run in ran if is_crowded(run.plan)])
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
        process_bytes={title: size for run in roomy or ran for title, size in run.process_bytes.items()},
        speed=findings.usual_speed,
        skipped=(*findings.skipped, *skipped),
    )


def run_all_probes(
    algorithm: Algorithm, env: Environment, plan: Plan, end: float, last: float, tell: Callable[[str], None]
) -> Findings:
    """Probe the plan with everything in one fragment with all threads, then all others, and each Op, with one.

    Compiling takes most of the time, and a process with one thread compiles on one core. So the plans are dealt to as
    many processes as there are cores, those that tell most first.
    """
    everything = in_one(plan)
    assert everything is not None
    split = [p for p in split_plans(plan) if p is not None]
    one_thread = [(p, False) for p in split[:1]] + [(everything, True)] + [(p, False) for p in split[1:]]
    dealt = [one_thread[k :: cores()] for k in range(min(cores(), len(one_thread)))]
    jobs = [ProbeJob((everything,), algorithm, env, cores(), wide_numbers(), (False,))]
    for share in dealt:
        plans, ops = zip(*share, strict=True)
        jobs.append(ProbeJob(plans, algorithm, env, 1, wide_numbers(), ops))
    findings = Findings()
    left = [tried for job in jobs for tried in job.plans]
    for tried, found in probe_in_turns(jobs, end, last, tell):
        findings.add(found, tried is everything)
        left.remove(tried)
    findings.skipped += map(in_words, left)
    return findings


def run_trials(
    algorithm: Algorithm, env: Environment, plans: list[Plan], end: float, longest: float, tell: Callable[[str], None]
) -> tuple[list[TrialRun], list[str]]:
    """Run plans on processes, as long as there is time for one that takes `longest`; and those for which there was
    none."""
    found: list[TrialRun] = []
    skipped: list[str] = []
    for tried in plans:
        begun = time.monotonic()
        if begun + longest > end:
            skipped.append(f"{in_words(tried)} on processes")
            continue
        tell(f"{in_words(tried)} on processes")
        found.append(trial_run(tried, algorithm, env))
        longest = max(longest, time.monotonic() - begun)
    return found, skipped


def with_memory(costs: Costs, ran: list[TrialRun], algorithm: Algorithm, env: Environment) -> Costs:
    """Costs with the memory of processes."""
    memory = {title: held for run in ran for title, held in bytes_besides_arrays(run, algorithm, env).items()}
    return replace(costs, process_memory=int(statistics.median(memory.values())), fragment_memory=memory)
