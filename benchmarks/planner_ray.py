"""Predicted and measured steps/s of plans on three Ray nodes of this machine; a report, with no gate.

    python benchmarks/planner_ray.py
    python benchmarks/planner_ray.py --pair impala-cartpole --plans "single_learner_coarse:actors=4,mode=async"

The simulator knows nodes with cores of their own. Three Ray nodes of one machine share its cores, so a plan is
predicted twice: `apart`, as if each node had all cores of this machine, and `in thirds`, as if each core were a third
as fast on each node. Reality lies between them wherever nodes do not all work all the time. Messages between nodes cost
what `tessera simulate` assumes where none were measured (CALLS_OF_RAY in tessera/planning/simulate.py); the network
costs nothing, as loopback does. Beside them: the same plan on processes of the local engine, where no message is a
call.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).resolve().parent))

import tyro
from planner import MORE_PAIRS, PAIRS, SIMULATED_UPDATES, Running, oldest

from tessera import algorithms
from tessera.cli.profile import progress_bar
from tessera.engines.ray_backend import cluster
from tessera.engines.simulated.cluster import Cluster, NodeKind
from tessera.engines.simulated.prediction import Prediction
from tessera.planning.prepare import prepare_plan
from tessera.planning.simulate import simulate, with_calls_of_ray
from tessera.profiling.ray_calls import saved_calls
from tessera.profiling.take import saved_or_taken
from tessera.support.machine import cores

NODES = 3


@dataclass
class Options:
    """What to run."""

    pair: str = "impala-cartpole"
    plans: tuple[str, ...] = (
        "single_learner_coarse:actors=2",
        "single_learner_coarse:actors=5",
        "single_learner_coarse:actors=2,mode=async",
        "single_learner_coarse:actors=5,mode=async",
    )
    rounds: int = 3
    """Times that each plan is measured."""
    seconds: float = 3.0
    """How long each time."""
    budget: float = 60.0
    """Seconds for a profile, where none is saved."""


def measure(text: str, engine: str, options: Options) -> tuple[float, float]:
    """Steps/s and lag of a plan."""
    algorithm, env, settings = {**PAIRS, **MORE_PAIRS}[options.pair]
    bound, environment, plan = prepare_plan(algorithms.get(algorithm)(**settings), env, text, engine=engine)
    running = Running(plan, bound, environment)
    try:
        return statistics.median(running.measure(options.seconds) for _ in range(options.rounds)), running.lag
    finally:
        running.close()


def main(options: Options) -> None:
    """Predict, measure and print."""
    algorithm, env, settings = {**PAIRS, **MORE_PAIRS}[options.pair]
    chosen = algorithms.get(algorithm)(**settings)
    bound, environment, base = prepare_plan(chosen, env, None)
    profile = saved_or_taken(bound, environment, base, progress_bar, seconds=options.budget)
    costs = with_calls_of_ray(profile.costs, saved_calls())

    def predict(text: str, speed: float) -> Prediction:
        bound, environment, plan = prepare_plan(chosen, env, text, engine="ray")
        nodes = Cluster((NodeKind(count=NODES, cores=cores(), speed=speed),))
        return simulate(plan, bound, environment, costs, cluster=nodes, updates=SIMULATED_UPDATES, draws=1).first

    os.environ["TESSERA_CLUSTER"] = tempfile.mkdtemp(prefix="planner-ray-")
    cluster.up(NODES, cpus=cores(), memory=256 << 20)
    try:
        address = cluster.prepare(None)
        from tessera.engines.ray import connect

        connect(address, 1)
        print(f"{options.pair}, steps/s (lag in updates); {NODES} Ray nodes of a machine with {cores()} cores")
        for text in options.plans:
            apart, thirds = predict(text, 1.0), predict(text, 1 / NODES)
            measured, lag = measure(text, "ray", options)
            local, local_lag = measure(text, "local", options)
            print(
                f"{text:42s} predicted {thirds.steps_per_second:8,.0f} in thirds, {apart.steps_per_second:8,.0f} apart "
                f"({oldest(apart.flows):.1f}); measured {measured:8,.0f} ({lag:.1f}); local engine {local:8,.0f} "
                f"({local_lag:.1f})",
                flush=True,
            )
    finally:
        import ray

        ray.shutdown()
        cluster.down()


if __name__ == "__main__":
    main(tyro.cli(Options))
