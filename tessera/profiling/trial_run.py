"""Short runs on processes: what only shows there, where replicas wait for each other and cores sleep meanwhile."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tessera.algorithms.contract import Algorithm
from tessera.engines.local import LocalEngine
from tessera.engines.replica.replica import make_training
from tessera.engines.simulated.costs import Costs, with_threads
from tessera.engines.simulated.engine import SimulatedEngine
from tessera.engines.simulated.memory import replica_bytes
from tessera.envs.base import Environment
from tessera.graph.plan import Plan
from tessera.profiling.profile import this_machine
from tessera.profiling.stopwatch import FirstCalls, TimedCall, undisturbed
from tessera.profiling.tried_plans import on_accelerators
from tessera.program.compile import CHUNK
from tessera.program.interfaces import Clock
from tessera.program.project import project
from tessera.program.shapes import slot_shapes
from tessera.support.machine import cores, peak_memory

SECONDS = 0.8
"""How long a run is timed, once with and once without stopwatches."""
LEAST_UPDATES, MOST_UPDATES = 5, CHUNK
LONGEST = {"wake": 0.002, "switch": 0.002, "device_switch": 0.005}
"""Seconds that are tried for what waking and switching cost."""
HALVINGS = 9
DRAWS = 4
"""Simulations of a run with nothing to fit. A run is short, and environments that sleep for long now and then make it
longer or shorter by chance."""
MOST_SIMULATED = 20
"""Updates; more of them would take long, and tell no more."""
COMPILING = 2
"""Calls of the engine before it is timed: in the first replicas compile, the second says how long an update takes."""
LEAST_CALLS = 5
"""First calls of a kind that are enough to tell how long they take."""


@dataclass(frozen=True)
class TrialRun:
    """What a run on processes has shown."""

    plan: Plan
    start_seconds: float
    process_bytes: dict[str, int]
    """Fragment -> the most memory that one of its processes held."""
    update_seconds: float
    updates: int
    """How many were timed, of which no more are simulated."""
    first_calls: dict[str, float]
    """Segment, Op or exchange, by name -> seconds of those that were the first of their kind after a wait."""


@dataclass(frozen=True)
class FirstCallFiles:
    """Records the first calls of every replica, in a folder."""

    folder: str

    def recorder(self, place: int, title: str, clock: Clock) -> FirstCallWriter:
        """The stopwatch of one replica; it has a clock of its own."""
        del title, clock
        return FirstCallWriter(Path(self.folder) / f"{place}.json")


class FirstCallWriter(FirstCalls):
    """Keeps what comes between the reports of two calls of the engine, and writes it into a file at the end."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path, self._flushes = path, 0

    def flush(self) -> None:
        """Forget what was timed while programs were compiled, and stop after the next call of the engine."""
        self._flushes += 1
        if self._flushes <= COMPILING + 1:  # one more for the start
            self.clear()
        else:
            self.active = False

    def close(self) -> None:
        """Write the file."""
        named = {**self.calls, **{name: calls for (_, name), calls in self.exchanges.items()}}
        self._path.write_text(json.dumps({name: [list(call) for call in calls] for name, calls in named.items()}))


def trial_run(plan: Plan, algorithm: Algorithm, env: Environment) -> TrialRun:
    """Run a plan on processes for a moment: with a stopwatch in each of them, and then as it is."""
    plan = replace(plan, engine="local")
    with tempfile.TemporaryDirectory() as folder:
        start_seconds, update_seconds, updates, held = _run(plan, algorithm, env, FirstCallFiles(folder))
        files = [json.loads(path.read_text()) for path in Path(folder).iterdir()]
    calls: dict[str, list[TimedCall]] = {}
    for found in files:
        for name, timed in found.items():
            calls.setdefault(name, []).extend(TimedCall(*call) for call in timed)
    middles = {
        name: statistics.median(work.seconds for work in undisturbed(timed))
        for name, timed in calls.items()
        if len(timed) >= LEAST_CALLS
    }
    return TrialRun(plan, start_seconds, held, update_seconds, min(updates, MOST_SIMULATED), middles)


def _run(
    plan: Plan, algorithm: Algorithm, env: Environment, recording: FirstCallFiles
) -> tuple[float, float, int, dict[str, int]]:
    """Seconds to the first update, seconds of an update, of how many, and the memory of each fragment's processes."""
    begun = time.monotonic()
    engine = LocalEngine(plan, algorithm, env, 0, 1 << 20, note=lambda text: None, recording=recording)
    try:
        engine.start()
        engine.advance(1)
        started = time.monotonic() - begun
        begun = time.monotonic()
        engine.advance(1)
        updates = max(LEAST_UPDATES, min(MOST_UPDATES, int(SECONDS / (time.monotonic() - begun))))
        engine.advance(updates)
        begun = time.monotonic()
        engine.advance(updates)
        seconds = (time.monotonic() - begun) / updates
        fragments: dict[str, int] = {}
        for title, pid in engine.processes().items():
            fragment = title.rpartition("/")[0]
            fragments[fragment] = max(peak_memory(pid), fragments.get(fragment, 0))
    finally:
        engine.close()
    return started, seconds, updates, fragments


def times_after_wait(costs: Costs, runs: Sequence[TrialRun], exchanges: Mapping[str, float]) -> dict[str, float]:
    """By how much each segment, Op and exchange takes longer as the first of its kind after a wait.

    Args:
        costs: what calls take that follow on others.
        runs: of two replicas each, which hold all environments.
        exchanges: by name, what those of such replicas take.
    """
    threads = max(1, cores() // 2)
    found: dict[str, list[float]] = {}
    for run in runs:
        for name, seconds in run.first_calls.items():
            if name in costs.timings:
                calls = with_threads(costs.timings[name], run.plan.envs, threads)
                usual = statistics.median(work.seconds for work in calls)
            elif name in exchanges:
                usual = exchanges[name]
            else:
                continue
            found.setdefault(name, []).append(max(0.0, seconds - usual))
    return {name: statistics.median(more) for name, more in found.items()}


def bytes_besides_arrays(run: TrialRun, algorithm: Algorithm, env: Environment) -> dict[str, int]:
    """Fragment -> what one of its processes held besides its arrays; on an accelerator those are elsewhere."""
    training = make_training(run.plan, algorithm, env)
    shapes = slot_shapes(training, run.plan)
    found = {}
    for i, placed in enumerate(run.plan.fragments):
        program = project(training.updates(), run.plan, i)
        arrays = replica_bytes(run.plan, i, program, shapes) if placed.platform == "cpu" else 0
        found[placed.title] = max(0, run.process_bytes[placed.title] - arrays)
    return found


def with_wakes(
    costs: Costs, runs: Sequence[TrialRun], crowded: TrialRun | None, algorithm: Algorithm, env: Environment
) -> Costs:
    """Costs with what waking a replica takes; and, by a run with more replicas than cores or accelerators, what it
    takes these to turn from one replica to another."""
    wakes = [fitted("wake", costs, run, algorithm, env) for run in runs]
    costs = replace(costs, wake=statistics.median([wake for wake in wakes if wake is not None] or [0.0]))
    if crowded is None:
        return costs
    name = "device_switch" if on_accelerators(crowded.plan) else "switch"
    found = fitted(name, costs, crowded, algorithm, env)
    return _with(costs, name, LONGEST[name] if found is None else found)


def fitted(name: str, costs: Costs, run: TrialRun, algorithm: Algorithm, env: Environment) -> float | None:
    """What a cost of waking replicas must be for a simulated update to take as long as a real one.

    None if none is enough: that update takes long for another reason.
    """
    shapes = slot_shapes(make_training(run.plan, algorithm, env), run.plan)  # the same in all of these simulations
    accelerators = this_machine().accelerators

    def simulated(seconds: float, seed: int) -> float:
        given = _with(costs, name, seconds)
        engine = SimulatedEngine(run.plan, algorithm, env, given, cores(), accelerators, seed, shapes=shapes)
        return 1 / engine.run(run.updates).updates_per_second

    low, high = 0.0, LONGEST[name]
    drawn = {seed: simulated(low, seed) for seed in range(DRAWS)}
    slowest = max(drawn, key=lambda seed: drawn[seed])  # what chance alone may take is no cost of waking
    if drawn[slowest] >= run.update_seconds:
        return low
    if simulated(high, slowest) < run.update_seconds:
        return None
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if simulated(middle, slowest) < run.update_seconds else (low, middle)
    return (low + high) / 2


def _with(costs: Costs, name: str, seconds: float) -> Costs:
    given: dict[str, Any] = {name: seconds}
    return replace(costs, **given)
