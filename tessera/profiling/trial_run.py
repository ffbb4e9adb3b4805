"""Short runs on processes: what only shows there, where replicas wait for each other and cores sleep meanwhile."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from tessera.algorithms.contract import Algorithm
from tessera.engines.local import LocalEngine
from tessera.engines.replica.replica import make_training
from tessera.engines.replica.trace import Row
from tessera.engines.simulated.memory import replica_bytes
from tessera.envs.base import Environment
from tessera.graph.plan import Plan
from tessera.profiling.core_speed import PART_SECONDS, CoreSpeed
from tessera.profiling.stopwatch import FirstCalls, TimedCall, undisturbed
from tessera.profiling.tried_plans import on_accelerators
from tessera.program.compile import CHUNK
from tessera.program.interfaces import Clock
from tessera.program.project import project
from tessera.program.shapes import slot_shapes
from tessera.support.machine import forget_peak_memory, peak_memory

SECONDS = 1.0
"""How long a run is timed, once with and once without stopwatches."""
LEAST_UPDATES, MOST_UPDATES = 5, CHUNK
LEAST_LONG_UPDATES = 2
"""Updates that are enough if each of them takes longer than all that is timed otherwise."""
MOST_SIMULATED = 12
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
    speed: float
    """Of a core meanwhile (`CoreSpeed`)."""
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

    def flush(self) -> list[Row]:
        """Forget what was timed while programs were compiled, and stop after the next call of the engine."""
        self._flushes += 1
        if self._flushes <= COMPILING + 1:  # one more for the start
            self.clear()
        else:
            self.active = False
        return []

    def close(self) -> None:
        """Write the file."""
        named = {**self.calls, **{name: calls for (_, name), calls in self.exchanges.items()}}
        self._path.write_text(json.dumps({name: [list(call) for call in calls] for name, calls in named.items()}))


def trial_run(plan: Plan, algorithm: Algorithm, env: Environment) -> TrialRun:
    """Run a plan on processes for a moment: with a stopwatch in each of them, and then as it is."""
    plan = replace(plan, engine="local")
    with tempfile.TemporaryDirectory() as folder:
        started, timed, speed, held = _run(plan, algorithm, env, FirstCallFiles(folder))
        files = [json.loads(path.read_text()) for path in Path(folder).iterdir()]
    calls: dict[str, list[TimedCall]] = {}
    for found in files:
        for name, each in found.items():
            calls.setdefault(name, []).extend(TimedCall(*call) for call in each)
    middles = {
        name: statistics.median(work.seconds for work in undisturbed(each))
        for name, each in calls.items()
        if len(each) >= LEAST_CALLS
    }
    seconds, updates = timed
    return TrialRun(plan, started, held, seconds, min(updates, MOST_SIMULATED), speed, middles)


def _run(
    plan: Plan, algorithm: Algorithm, env: Environment, recording: FirstCallFiles
) -> tuple[float, tuple[float, int], float, dict[str, int]]:
    """Seconds to the first update; seconds of later ones, and how many were timed; the speed of a core; and the memory
    of each fragment's processes, without what compiling took."""
    begun = time.monotonic()
    engine = LocalEngine(plan, algorithm, env, 0, 1 << 20, note=lambda text: None, recording=recording)
    try:
        engine.start()
        engine.advance(1)
        started = time.monotonic() - begun
        begun = time.monotonic()
        engine.advance(1)
        an_update = time.monotonic() - begun
        updates = timed_updates(an_update)
        for pid in engine.processes().values():
            forget_peak_memory(pid)
        engine.advance(updates)
        seconds, speed = _timed(engine, updates, max(1, int(PART_SECONDS / an_update)), on_accelerators(plan))
        fragments: dict[str, int] = {}
        for title, pid in engine.processes().items():
            fragment = title.rpartition("/")[0]
            fragments[fragment] = max(peak_memory(pid), fragments.get(fragment, 0))
    finally:
        engine.close()
    return started, (seconds, updates), speed, fragments


def _timed(engine: LocalEngine, updates: int, part: int, accelerators: bool) -> tuple[float, float]:
    """Seconds of an update, the mean of so many, and the speed of a core meanwhile, which is sampled after each part.

    As many more are always asked for at once, so that nobody pauses meanwhile.
    """
    speed, parts = CoreSpeed(accelerators), max(1, updates // part)
    begun = time.monotonic()
    for _ in range(parts - 1):
        _run_part(engine, part, speed)
    engine.advance(updates - (parts - 1) * part)
    seconds = (time.monotonic() - begun) / updates
    speed.sample()
    return seconds, speed.mean


def _run_part(engine: LocalEngine, updates: int, speed: CoreSpeed) -> None:
    engine.advance(updates, ahead=updates)
    speed.sample()


def timed_updates(seconds: float) -> int:
    """How many updates are timed that take so long each."""
    least = LEAST_UPDATES if seconds < SECONDS else LEAST_LONG_UPDATES
    return max(least, min(MOST_UPDATES, int(SECONDS / seconds)))


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
