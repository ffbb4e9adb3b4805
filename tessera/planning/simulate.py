"""A plan in virtual time, several times over: what it would do, with intervals."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from pathlib import Path

from tessera.algorithms.contract import Algorithm
from tessera.engines.replica.trace import clear_traces, merge_traces
from tessera.engines.simulated.cluster import Cluster
from tessera.engines.simulated.costs import Costs, LinkCosts
from tessera.engines.simulated.costs_file import load_costs as load_costs
from tessera.engines.simulated.deployment import (
    MOST_EXACT,
    Deployment,
    on_cluster,
    on_one_machine,
    updates_until_all_are_heard,
)
from tessera.engines.simulated.engine import SimulatedEngine
from tessera.engines.simulated.prediction import Prediction
from tessera.envs.base import Environment
from tessera.errors import TesseraError
from tessera.graph.plan import Plan

DRAWS = 5
"""Runs with calls drawn anew, of which the interval is made."""
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Number of draws -> how many standard errors the interval of 95 % reaches to each side (Student's t)."""
CALLS_OF_RAY = LinkCosts(latency=3e-4, cpu_per_message=1e-3, cpu_per_byte=1.2e-9)
"""Between two processes of one machine: 600 µs a round trip, a millisecond of a core at each end (decision 0056), and
2.5 ms a megabyte at both ends together."""
UPDATES, WARMUP = 20, 4
"""Times that all replicas are heard, while counting and before."""


@dataclass(frozen=True)
class Simulation:
    """Predictions of one plan, each with calls drawn anew."""

    deployment: Deployment
    predictions: tuple[Prediction, ...]

    @property
    def first(self) -> Prediction:
        """The first of them, of which the details are shown."""
        return self.predictions[0]

    @property
    def steps_per_second(self) -> float:
        """The mean over draws."""
        return statistics.fmean(p.steps_per_second for p in self.predictions)

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of 95 % of the mean; a point where costs do not vary."""
        found = [p.steps_per_second for p in self.predictions]
        if len(found) < 2:
            return found[0], found[0]
        reach = T_95[len(found)] * statistics.stdev(found) / math.sqrt(len(found))
        return max(0.0, self.steps_per_second - reach), self.steps_per_second + reach

    @property
    def price_per_million_steps(self) -> float:
        """What a million steps cost; 0 where nodes have no price."""
        cluster = self.deployment.cluster
        return 0.0 if cluster is None else cluster.price / 3600 * 1e6 / self.steps_per_second


def simulate(
    plan: Plan,
    algorithm: Algorithm,
    env: Environment,
    costs: Costs,
    *,
    cores: int = 1,
    accelerators: int = 0,
    cluster: Cluster | None = None,
    updates: int | None = None,
    draws: int = DRAWS,
    trace: Path | None = None,
    most_exact: int = MOST_EXACT,
) -> Simulation:
    """Predict how a plan runs on one machine or on a cluster; `trace` is where the timeline of the first draw goes."""
    if updates is not None and updates < 1:
        raise TesseraError(f"--updates {updates}: at least one update is needed")
    deployment = on_one_machine(plan, cores, accelerators) if cluster is None else on_cluster(plan, cluster, most_exact)
    heard = updates_until_all_are_heard(deployment)
    found: list[Prediction] = []
    for seed in range(min(draws, max(T_95)) if costs.timings else 1):
        kept = trace if seed == 0 else None
        engine = SimulatedEngine(plan, algorithm, env, costs, seed=seed, deployment=deployment, trace=kept)
        try:
            found.append(engine.run(updates or UPDATES * heard, WARMUP * heard))
        except TesseraError:
            if trace is not None:
                clear_traces(trace)
            raise
    if trace is not None:
        merge_traces(trace)
    return Simulation(deployment, tuple(found))


def with_calls_of_ray(costs: Costs, measured: LinkCosts | None = None) -> Costs:
    """The costs; where they do not say what messages between machines cost, those are calls of Ray, as measured on this
    machine or else on one of ours."""
    return costs if costs.remote_links != LinkCosts() else replace(costs, remote_links=measured or CALLS_OF_RAY)


def on_accelerators(plan: Plan) -> Plan:
    """The plan of a CPU-only machine for nodes that have accelerators."""
    return replace(plan, fragments=tuple(replace(f, platform="gpu") for f in plan.fragments))
