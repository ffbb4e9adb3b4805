"""The engine that a plan names."""

from __future__ import annotations

from typing import Any

from tessera.algorithms.base import Algorithm
from tessera.engines.fleet import Fleet
from tessera.engines.local import LocalEngine
from tessera.engines.mapping import MapReduce
from tessera.engines.serial import SerialEngine
from tessera.envs.base import Environment
from tessera.errors import TesseraError, unknown_name
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
    return ray_engine(address, sum(f.replicas for f in plan.fragments))(plan, algorithm, env, seed, updates, **options)


def ray_engine(address: str | None, processes: int) -> type[Fleet]:
    """The Ray engine's class, once this process is connected to a cluster, or to its own with room for so many."""
    try:
        from tessera.engines.ray import RayEngine, connect  # with Ray
    except ImportError as error:
        raise TesseraError(
            f"--engine ray needs a package that is not installed ({error.name or error}): run pip install 'ray>=2.54'"
        ) from None
    connect(address, processes)
    return RayEngine


def mapping_engine(name: str, address: str | None, workers: int) -> type[MapReduce]:
    """The class of an engine, to map items with."""
    classes: dict[str, type[MapReduce]] = {"serial": SerialEngine, "local": LocalEngine}
    if name not in (*classes, "ray"):
        raise unknown_name("engine", name, (*classes, "ray"))
    return classes[name] if name in classes else ray_engine(address, workers)
