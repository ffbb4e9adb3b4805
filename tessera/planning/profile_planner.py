"""A planner by a profile: it simulates plans with costs that were measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tessera.algorithms.contract import Algorithm
from tessera.engines.simulated.costs import Costs
from tessera.engines.simulated.engine import SimulatedEngine
from tessera.engines.simulated.machine import Machine
from tessera.engines.simulated.prediction import Prediction
from tessera.envs.base import Environment
from tessera.errors import TesseraError
from tessera.graph.plan import Plan
from tessera.planning.planner import Measured

UPDATES, WARMUP = 10, 3
"""Updates that are simulated, and those before them that fill queues."""

Find = Callable[[Plan, Measured], Plan | None]


@dataclass(frozen=True)
class ProfilePlanner:
    """Predicts plans of one algorithm in one environment on the machine that was profiled."""

    algorithm: Algorithm
    """Bound to the environment."""
    env: Environment
    costs: Costs
    machine: Machine
    profiled_at: float | None = None
    find: Find | None = None
    """Finds a better plan; None: it only predicts."""

    def predict(self, plan: Plan) -> Prediction | None:
        """Simulate the plan; None where it runs on a cluster, in turns of one thread, or cannot be simulated."""
        in_turns = plan.engine == "serial" and len(plan.places) > 1
        if in_turns or plan.engine == "ray":
            return None
        there = self.machine
        try:
            engine = SimulatedEngine(plan, self.algorithm, self.env, self.costs, there.cores, there.accelerators)
            return engine.run(UPDATES, WARMUP)
        except TesseraError:  # a prediction that nobody asked for is no reason not to run
            return None

    def better(self, plan: Plan, measured: Measured) -> Plan | None:
        """A plan that would be faster by what was measured, if there is one."""
        return None if self.find is None else self.find(plan, measured)
