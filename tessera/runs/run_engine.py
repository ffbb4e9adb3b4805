"""The engine of a run, with the options that the user gave for it."""

from __future__ import annotations

from collections.abc import Callable

from tessera.algorithms.contract import Algorithm
from tessera.engines.base import Engine
from tessera.engines.factory import make_engine
from tessera.engines.ray_backend import cluster
from tessera.envs.base import Environment
from tessera.graph.plan import Plan
from tessera.runs.run_options import RunOptions


def engine_for(
    plan: Plan,
    algorithm: Algorithm,
    env: Environment,
    seed: int,
    updates: int,
    options: RunOptions,
    note: Callable[[str], None],
    logs: str,
) -> Engine:
    """Make it; `logs` is a folder for what replicas of other machines print."""
    address = cluster.prepare(options.address) if plan.engine == "ray" else None
    return make_engine(
        plan, algorithm, env, seed, updates, address, timeout=options.timeout, start_timeout=options.start_timeout,
        restarts=options.restarts, note=note, trace="" if options.trace is None else str(options.trace),
        trust_network=options.trust_network, logs=logs,
    )  # fmt: skip
