"""Engines by name: the one that runs a plan, and the one that maps items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tessera.algorithms.contract import Algorithm
from tessera.engines.base import Engine
from tessera.engines.driver.process_engine import ProcessEngine
from tessera.engines.local import LocalEngine
from tessera.engines.map_reduce.base import MapReduce
from tessera.engines.ray_backend import cluster
from tessera.engines.replica.trace import Recording
from tessera.engines.serial import SerialEngine
from tessera.envs.base import Environment
from tessera.errors import TesseraError, unknown_name
from tessera.graph.plan import Plan
from tessera.support.extras import install_hint


def make_engine(
    plan: Plan,
    algorithm: Algorithm,
    env: Environment,
    seed: int,
    updates: int,
    address: str | None,
    recording: Recording | None = None,
    **options: Any,
) -> Engine:
    """Make it; `recording` is what replicas are recorded by, and `options` are those of an engine with processes."""
    if plan.engine == "serial":
        return SerialEngine(plan, algorithm, env, seed, updates, recording)
    if plan.engine == "local":
        return LocalEngine(plan, algorithm, env, seed, updates, recording=recording, **options)
    return ray_engine(address, sum(f.replicas for f in plan.fragments))(
        plan, algorithm, env, seed, updates, recording=recording, **options
    )


def ray_engine(address: str | None, processes: int) -> type[ProcessEngine]:
    """The Ray engine's class, once this process is connected to a cluster, or to its own with room for so many."""
    try:
        from tessera.engines.ray import RayEngine, connect  # with Ray
    except ImportError as error:
        raise TesseraError(
            f"--engine ray needs a package that is not installed ({error.name or error}): run {install_hint('ray')}"
        ) from None
    connect(address, processes)
    return RayEngine


def mapping_engine(name: str, address: str | None, workers: int) -> type[MapReduce]:
    """The class of an engine, to map items with."""
    classes: dict[str, type[MapReduce]] = {"serial": SerialEngine, "local": LocalEngine}
    if name not in (*classes, "ray"):
        raise unknown_name("engine", name, (*classes, "ray"))
    return classes[name] if name in classes else ray_engine(address, workers)


def map_reduce(
    map: Callable[[Any], Any],
    reduce: Callable[[list[Any]], Any],
    items: Sequence[Any],
    *,
    engine: str | None = None,
    workers: int | None = None,
    address: str | None = None,
    **terms: Any,
) -> Any:
    """Call `map` with each item and give what `reduce` makes of the list of results, in the order of items.

    Args:
        map: a function at the top level of a module, or a functools.partial of one; called with one item.
        reduce: called once, here, with all results.
        items: plain data (numbers, texts, lists, dicts, arrays), as results are.
        engine: serial (in this thread), local (processes) or ray (tasks of a cluster); None: local for several workers.
        workers: items in progress at a time; None: one if no engine is named, else as many as there are cores.
        address: Ray cluster for "ray"; None: the one that `tessera cluster up` started, else one for this process.
        terms: `first` (so many results are enough), `retries` (of an item whose worker was lost), `timeout` (seconds
            after which it counts as lost), `note`; see `tessera.engines.map_reduce.base.MapOptions`.
    """
    cluster.check_address(address, engine)
    chosen = engine or ("serial" if workers in (None, 1) else "local")
    where = cluster.prepare(address) if chosen == "ray" else None  # before Ray is imported
    return mapping_engine(chosen, where, workers or 1).map_reduce(map, reduce, items, workers=workers, **terms)
