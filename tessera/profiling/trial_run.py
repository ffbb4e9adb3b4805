"""A short run on processes: what it takes to start, what each process holds, and what it takes to wake one of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from tessera.algorithms.contract import Algorithm
from tessera.engines.local import LocalEngine
from tessera.engines.replica.replica import make_training
from tessera.engines.simulated.costs import Costs
from tessera.engines.simulated.engine import SimulatedEngine
from tessera.envs.base import Environment
from tessera.graph.plan import Plan
from tessera.program.shapes import slot_shapes
from tessera.support.machine import cores

SECONDS = 1.5
"""How long it is timed."""
LEAST_UPDATES, MOST_UPDATES = 5, 1024
LONGEST_WAKE = 0.002
SIMULATED_UPDATES = 20
HALVINGS = 12


@dataclass(frozen=True)
class TrialRun:
    """What a run on processes has shown."""

    start_seconds: float
    process_bytes: dict[str, int]
    """Fragment -> the most memory that one of its processes held."""
    wake: float
    """Seconds that it takes to wake a replica, so that the simulated run is as fast as this one."""


def trial_run(plan: Plan, algorithm: Algorithm, env: Environment, costs: Costs, end: float) -> TrialRun | None:
    """Run a plan on processes for a moment; None if the time is over."""
    if time.monotonic() > end:
        return None
    begun = time.monotonic()
    engine = LocalEngine(replace(plan, engine="local"), algorithm, env, 0, 1 << 20, note=lambda text: None)
    try:
        engine.start()
        engine.advance(1)
        started = time.monotonic() - begun
        begun = time.monotonic()
        engine.advance(1)
        updates = max(LEAST_UPDATES, min(MOST_UPDATES, int(SECONDS / (time.monotonic() - begun))))
        begun = time.monotonic()
        engine.advance(updates)
        seconds = (time.monotonic() - begun) / updates
        held = {title: _most_bytes(pid) for title, pid in engine.processes().items()}
    finally:
        engine.close()
    fragments: dict[str, int] = {}
    for title, size in held.items():
        fragment = title.rpartition("/")[0]
        fragments[fragment] = max(size, fragments.get(fragment, 0))
    return TrialRun(started, fragments, find_wake(plan, algorithm, env, costs, seconds))


def find_wake(plan: Plan, algorithm: Algorithm, env: Environment, costs: Costs, seconds: float) -> float:
    """What waking a replica must take for a simulated update to take as long as a real one."""
    shapes = slot_shapes(make_training(plan, algorithm, env), plan)  # the same in all of these simulations

    def simulated(wake: float) -> float:
        given = replace(costs, wake=wake)
        engine = SimulatedEngine(plan, algorithm, env, given, cores(), shapes=shapes)
        return 1 / engine.run(SIMULATED_UPDATES).updates_per_second

    low, high = 0.0, LONGEST_WAKE
    if simulated(low) >= seconds:
        return low
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if simulated(middle) < seconds else (low, middle)
    return (low + high) / 2


def _most_bytes(pid: int) -> int:
    """The most memory that a process has held."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
