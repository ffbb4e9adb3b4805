"""What waiting costs: found so that simulated runs take as long as the same ones on processes did."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tessera.algorithms.contract import Algorithm
from tessera.engines.replica.replica import make_training
from tessera.engines.simulated.costs import Costs, with_threads
from tessera.engines.simulated.deployment import on_one_machine
from tessera.engines.simulated.engine import SimulatedEngine
from tessera.engines.simulated.prediction import Prediction
from tessera.envs.base import Environment
from tessera.profiling.probers import in_words
from tessera.profiling.profile import this_machine
from tessera.profiling.trial_run import TrialRun
from tessera.profiling.tried_plans import on_accelerators, processes_on_a_device
from tessera.program.shapes import Shapes, slot_shapes
from tessera.support.machine import cores

LONGEST_WAKE = 0.002
LONGEST_SWITCH = 0.002
LONGEST_DEVICE_SWITCH = 0.005
"""Seconds that are tried for what waking and switching cost."""
TRIES = 6
"""Numbers between the least and the most that are tried, at the most."""
CLOSE = 0.003
"""Relative difference of simulated and real updates that is close enough."""
DRAWS = 3
"""Simulations of a run with nothing to fit. A run is short, and environments that sleep for long now and then make it
longer or shorter by chance."""


class Calibration:
    """Finds costs of waiting by runs on processes."""

    def __init__(self, algorithm: Algorithm, env: Environment, usual_speed: float) -> None:
        """`usual_speed`: of a core when all other costs were measured."""
        self._algorithm, self._env, self._usual_speed = algorithm, env, usual_speed
        self._shapes: dict[str, Shapes] = {}
        """Of a plan's slots, by its fragments: the same in all simulations of a run."""

    def with_waits(self, costs: Costs, runs: Sequence[TrialRun], exchanges: Mapping[str, float]) -> Costs:
        """Costs with what a replica that has waited takes longer for.

        Each run tells of its own exchanges. If a simulated one takes longer than it did, what calls after a wait take
        longer was partly hidden behind what others did, and counts for less. If it takes less long, the rest is what
        waking a replica takes: for each slot by the run that exchanges it most often.

        Args:
            costs: what calls take that follow on others.
            runs: of two replicas each, which hold all environments.
            exchanges: by name, what those of such replicas take.
        """
        after: dict[str, list[float]] = {}
        found: list[tuple[TrialRun, float]] = []
        for run in runs:
            own = times_after_wait(costs, run, exchanges, run.speed / self._usual_speed)
            share, wake = self._share_and_wake(costs, own, run)
            for name, seconds in own.items():
                after.setdefault(name, []).append(share * seconds)
            if wake is not None:  # else an update takes long for another reason
                found.append((run, wake))
        costs = replace(costs, after_wait={name: statistics.median(seconds) for name, seconds in after.items()})
        middle = statistics.median([wake for _, wake in found] or [0.0])
        return replace(costs, wake=middle, wakes=self._by_slot(costs, found))

    def with_switches(self, costs: Costs, crowded: Sequence[TrialRun]) -> Costs:
        """Costs with what it takes cores or accelerators to turn from one replica to another, by runs with more
        replicas than there are of these; for cores for each slot by the run that exchanges it most often, for
        accelerators by how many processes share them."""
        found: list[tuple[TrialRun, float]] = []
        for run in crowded:
            of_cores, of_devices = (_with_switch, LONGEST_SWITCH), (_with_device_switch, LONGEST_DEVICE_SWITCH)
            costs_with, most = of_devices if on_accelerators(run.plan) else of_cores
            draws = self._draws(costs, run)
            slowest = max(draws, key=lambda k: draws[k])
            switch = self._fitted(partial(costs_with, costs), most, run, slowest)
            if switch is not None:
                found.append((run, switch))
        if not found:
            return costs
        if on_accelerators(found[0][0].plan):
            by_processes = {processes_on_a_device(run.plan): switch for run, switch in found}
            return replace(costs, device_switches=tuple(sorted(by_processes.items())))
        middle = statistics.median(switch for _, switch in found)
        return replace(costs, switch=middle, switches=self._by_slot(costs, found))

    def _by_slot(self, costs: Costs, found: Sequence[tuple[TrialRun, float]]) -> dict[str, float]:
        """What was found by the run that exchanges a slot most often, by slot."""
        most: dict[str, tuple[float, float]] = {}
        for run, seconds in found:
            for slot, messages in self._messages(costs, run).items():
                most[slot] = max(most.get(slot, (0.0, 0.0)), (messages / _pairs(run), seconds))
        return {slot: seconds for slot, (_, seconds) in most.items()}

    def _share_and_wake(self, costs: Costs, after: Mapping[str, float], run: TrialRun) -> tuple[float, float | None]:
        """Which share of times after a wait counts, and what waking takes; what chance alone may do is neither."""

        def with_share(share: float) -> Costs:
            return replace(costs, after_wait={name: share * seconds for name, seconds in after.items()})

        whole = with_share(1.0)
        draws = self._draws(whole, run)
        fastest, slowest = min(draws, key=lambda k: draws[k]), max(draws, key=lambda k: draws[k])
        if draws[fastest] > run.update_seconds:
            return self._fitted(with_share, 1.0, run, fastest) or 0.0, 0.0
        return 1.0, self._fitted(lambda x: replace(whole, wake=x), LONGEST_WAKE, run, slowest)

    def _draws(self, costs: Costs, run: TrialRun) -> dict[int, float]:
        """Seed -> seconds of a simulated update."""
        return {seed: self._update_seconds(costs, run, seed) for seed in range(DRAWS)}

    def _fitted(self, costs_with: Callable[[float], Costs], most: float, run: TrialRun, seed: int) -> float | None:
        """Which number, up to `most`, makes a simulated update take as long as a real one; 0 if it takes longer anyway,
        None if none is enough. Between two numbers it goes by the line through them: updates get longer in proportion.
        """
        low = 0.0, self._update_seconds(costs_with(0.0), run, seed)
        if low[1] >= run.update_seconds:
            return 0.0
        high = most, self._update_seconds(costs_with(most), run, seed)
        if high[1] < run.update_seconds:
            return None
        found = most
        for _ in range(TRIES):
            found = low[0] + (high[0] - low[0]) * (run.update_seconds - low[1]) / (high[1] - low[1])
            seconds = self._update_seconds(costs_with(found), run, seed)
            if abs(seconds / run.update_seconds - 1) < CLOSE:
                break
            low, high = ((found, seconds), high) if seconds < run.update_seconds else (low, (found, seconds))
        return found

    def _update_seconds(self, costs: Costs, run: TrialRun, seed: int) -> float:
        return 1 / self._simulated(costs, run, seed).updates_per_second

    def _simulated(self, costs: Costs, run: TrialRun, seed: int = 0) -> Prediction:
        """The same run in virtual time, on cores as fast as they were."""
        there = on_one_machine(run.plan, cores(), this_machine().accelerators)
        speed = run.speed / self._usual_speed
        there = replace(there, kinds=tuple(replace(kind, speed=speed, accelerator_speed=1.0) for kind in there.kinds))
        which = in_words(run.plan)
        if which not in self._shapes:
            self._shapes[which] = slot_shapes(make_training(run.plan, self._algorithm, self._env), run.plan)
        given: dict[str, Any] = {"seed": seed, "deployment": there, "shapes": self._shapes[which]}
        return SimulatedEngine(run.plan, self._algorithm, self._env, costs, **given).run(run.updates)

    def _messages(self, costs: Costs, run: TrialRun) -> dict[str, float]:
        """Slot -> messages of an update."""
        flows = self._simulated(costs, run).flows
        streams = {channel.slot: channel.stream for channel in run.plan.channels}
        return {slot: flows[stream].messages / run.updates for slot, stream in streams.items() if stream in flows}


def times_after_wait(
    costs: Costs, run: TrialRun, exchanges: Mapping[str, float], speed: float = 1.0
) -> dict[str, float]:
    """By how much each segment, Op and exchange of a run takes longer as the first of its kind after a wait.

    `speed` is that of a core in the run, relative to when costs were measured.
    """
    threads = max(1, cores() // 2)
    found: dict[str, float] = {}
    for name, seconds in run.first_calls.items():
        if name in costs.timings:
            calls = with_threads(costs.timings[name], run.plan.envs, threads)
            usual = statistics.median(work.seconds for work in calls)
        elif name in exchanges:
            usual = exchanges[name]
        else:
            continue
        found[name] = max(0.0, seconds * speed - usual)
    return found


def _pairs(run: TrialRun) -> int:
    """Pairs of replicas that exchange something."""
    return max(f.replicas for f in run.plan.fragments)


def _with_switch(costs: Costs, seconds: float) -> Costs:
    return replace(costs, switch=seconds)


def _with_device_switch(costs: Costs, seconds: float) -> Costs:
    return replace(costs, device_switches=((1, seconds),))
