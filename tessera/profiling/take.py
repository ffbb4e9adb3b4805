"""Taking a profile: probes in processes like those of replicas, then short runs on processes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
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
from tessera.profiling.findings import alone, make_costs
from tessera.profiling.measurements import (
    OPS,
    SPLIT,
    WHOLE,
    Measurements,
    measurements_from_json,
    measurements_to_json,
    probe_name,
)
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
        again: take one from the beginning even if one is saved.
        complete: go on with the saved one if it was cut short.
    """
    profile = None if again else find_profile(algorithm, env, plan)
    if profile is None or (complete and profile.skipped):
        with bar() as progress:
            profile = take_profile(algorithm, env, plan, progress, seconds, profile)
        save_profile(profile)
    return profile


def take_profile(
    algorithm: Algorithm,
    env: Environment,
    plan: Plan,
    progress: Progress,
    seconds: float = BUDGET,
    before: Profile | None = None,
) -> Profile:
    """Measure what a plan's algorithm costs in its environment on this machine; `before` is one that was cut short."""
    begun = time.monotonic()

    def tell(what: str) -> None:
        progress(what, min(1.0, (time.monotonic() - begun) / seconds))

    tried = {in_words(p): p for p in trial_plans(plan)}
    measured = Measurements() if before is None else measured_before(before, tried)
    skipped = run_all_probes(algorithm, env, plan, measured, begun + PROBES * seconds, begun + seconds, tell)
    findings = measured.findings()
    if not findings.timings:
        raise TesseraError(
            f"no profile can be taken: not one update of {plan.algorithm} in {plan.env} was done within {seconds:.0f} s"
        )
    slowdown = measure_slowdown(cores(), tell)
    costs = replace(make_costs(findings, plan, algorithm, env), slowdown=slowdown)
    skipped += run_trials(algorithm, env, tried, measured, begun + RUNS * seconds, findings.least_seconds, tell)
    ran = [measured.runs[name] for name in tried if name in measured.runs]
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
        skipped=tuple(skipped),
        measured=measurements_to_json(measured) if skipped else {},
    )


def measured_before(profile: Profile, plans: Mapping[str, Plan]) -> Measurements:
    """What was measured for a profile that was cut short; `plans` are those of runs, by their fragments in words."""
    try:
        return measurements_from_json(profile.measured, plans)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TesseraError(
            f"the saved profile cannot be gone on with ({type(error).__name__}: {error}): begin anew with `tessera "
            "profile --again`"
        ) from None


def run_all_probes(
    algorithm: Algorithm,
    env: Environment,
    plan: Plan,
    measured: Measurements,
    end: float,
    last: float,
    tell: Callable[[str], None],
) -> list[str]:
    """Probe the plan with everything in one fragment with all threads, then all others, and each Op, with one; those
    that were not measured before. Returns for which there was no time.

    Compiling takes most of the time, and a process with one thread compiles on one core. So the plans are dealt to as
    many processes as there are cores, those that tell most first.
    """
    everything = in_one(plan)
    assert everything is not None
    split = [(p, SPLIT) for p in split_plans(plan) if p is not None]
    one_thread = [each for each in [*split[:1], (everything, OPS), *split[1:]] if _is_new(each, measured)]
    dealt = [one_thread[k :: cores()] for k in range(min(cores(), len(one_thread)))]
    jobs, left = [], one_thread
    if _is_new((everything, WHOLE), measured):
        jobs.append(ProbeJob((everything,), algorithm, env, cores(), wide_numbers(), (False,)))
        left = [(everything, WHOLE), *one_thread]
    for share in dealt:
        ops = tuple(how == OPS for _, how in share)
        jobs.append(ProbeJob(tuple(p for p, _ in share), algorithm, env, 1, wide_numbers(), ops))
    for tried, found in probe_in_turns(jobs, end, end if measured.probes else last, tell):
        how = SPLIT if tried is not everything else WHOLE if found.timings else OPS
        measured.probes[probe_name(tried, how)] = found
        left.remove((tried, how))
    return [in_words(tried) for tried, _ in left]


def _is_new(probe: tuple[Plan, str], measured: Measurements) -> bool:
    return probe_name(*probe) not in measured.probes


def run_trials(
    algorithm: Algorithm,
    env: Environment,
    plans: Mapping[str, Plan],
    measured: Measurements,
    end: float,
    longest: float,
    tell: Callable[[str], None],
) -> list[str]:
    """Run plans on processes that were not measured before, as long as there is time for one that takes `longest`;
    returns those for which there was none."""
    skipped: list[str] = []
    for name, tried in plans.items():
        begun, title = time.monotonic(), f"{name} on processes"
        if name in measured.runs:
            continue
        if begun + longest > end:
            skipped.append(title)
            continue
        tell(title)
        measured.runs[name] = trial_run(tried, algorithm, env)
        longest = max(longest, time.monotonic() - begun)
    return skipped


def with_memory(costs: Costs, ran: list[TrialRun], algorithm: Algorithm, env: Environment) -> Costs:
    """Costs with the memory of processes."""
    memory = {title: held for run in ran for title, held in bytes_besides_arrays(run, algorithm, env).items()}
    return replace(costs, process_memory=int(statistics.median(memory.values())), fragment_memory=memory)
