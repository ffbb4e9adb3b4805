"""The engine that a plan names."""

from __future__ import annotations

from typing import Any

from tessera.algorithms.base import Algorithm
from tessera.engines.fleet import Fleet
from tessera.engines.local import LocalEngine
from tessera.engines.serial import SerialEngine
from tessera.envs.base import Environment
from tessera.errors import TesseraError
from tessera.graph.plan import Plan

Engine = SerialEngine | Fleet


def make_engine(
    plan: Plan, algorithm: Algorithm, env: Environment, seed: int, updates: int, address: str | None, **options: Any
) -> Engine:
    """Make it; `options` are those of an engine with processes."""
    if plan.engine == "serial":
        return SerialEngine(plan, algorithm, env, seed, updates, trace=options["trace"])
    if plan.engine == "local":
        return LocalEngine(plan, algorithm, env, seed, updates, **options)
    try:
        from tessera.engines.ray import RayEngine, connect  # with Ray
    except ImportError as error:
        raise TesseraError(
            f"--engine ray needs a package that is not installed ({error.name or error}): run pip install 'ray>=2.54'"
        ) from None
    connect(address, sum(f.replicas for f in plan.fragments))
    return RayEngine(plan, algorithm, env, seed, updates, **options)
