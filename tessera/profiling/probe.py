"""Probes: plans that a process runs for a moment, in one thread, to see what their parts cost."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from tessera.algorithms.contract import Algorithm
from tessera.channels.packing import pack
from tessera.engines.simulated.costs import Timing, Work
from tessera.engines.simulated.costs_file import timings_from_json, timings_to_json
from tessera.envs.base import Environment
from tessera.errors import EnvironmentFailed, TesseraError
from tessera.graph.plan import Plan
from tessera.profiling.core_speed import PART_SECONDS, CoreSpeed
from tessera.profiling.stopwatch import thinned, undisturbed
from tessera.profiling.tried_plans import on_accelerators
from tessera.support.machine import forget_peak_memory, peak_memory

if TYPE_CHECKING:
    from tessera.profiling.probe_engine import ProbeEngine

WARMUP = 2
"""Unrolls that fill a replay: sampling costs the same, however full it is."""
LEAST_UPDATES = 4
SECONDS = 0.6
"""How long a probe is timed, at the least."""
MOST_SECONDS = 1.5
"""How long it is timed at the most, once it has made an update."""
SLEEPS = 0.05
"""Voluntary switches of a thread per call, above which what Python calls sleeps rather than being kept from a core."""


@dataclass(frozen=True)
class ExchangeTime:
    """Exchanges at one end of a channel, of one size."""

    name: str
    """As in a table of costs (`exchange_name`)."""
    links: int
    """Links that its messages go through."""
    nbytes: int
    """Bytes of all of them."""
    seconds: float
    """Half of them took as long, or longer."""


@dataclass(frozen=True)
class Probed:
    """What a probe found."""

    timings: dict[str, tuple[Timing, ...]]
    exchanges: tuple[ExchangeTime, ...]
    per_node: float
    """Seconds that Python takes between two nodes."""
    compile_seconds: float
    ops: dict[str, tuple[int, float]]
    """Name of an Op -> environments, and seconds of one call within a program."""
    dispatch: float = 0.0
    """Seconds that it takes to call a compiled program, where Ops were timed."""
    speed: float = 1.0
    """What a core of this machine got done meanwhile: machines that others share are not always as fast."""
    process_bytes: int = 0
    """The most memory that the process has held since all was compiled."""


@dataclass(frozen=True)
class ProbeJob:
    """The job of a process that tries plans, one after the other, and reports each."""

    plans: tuple[Plan, ...]
    algorithm: Algorithm
    env: Environment
    threads: int
    x64: bool
    ops: tuple[bool, ...]
    """Of which plans, of one fragment, it times each Op instead."""

    def work(self, connection: Connection) -> None:
        """Try all plans; each is timed when the driver says so."""
        import jax

        from tessera.support.cache import use_compilation_cache

        jax.config.update("jax_enable_x64", self.x64)
        use_compilation_cache()
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

        def turn() -> None:
            connection.send_bytes(pack({"kind": "ready"}, {}))
            connection.recv_bytes()

        for plan, ops in zip(self.plans, self.ops, strict=True):
            found = probe(plan, self.algorithm, self.env, self.threads, ops, turn)
            connection.send_bytes(pack({"kind": "probed", "found": probed_to_json(found)}, {}))


def probe(
    plan: Plan,
    algorithm: Algorithm,
    env: Environment,
    threads: int,
    ops: bool = False,
    turn: Callable[[], None] = lambda: None,
) -> Probed:
    """Run a plan for a moment in this process, and say what its parts cost.

    Args:
        threads: that this process has.
        ops: time each Op of a plan of one fragment instead.
        turn: called when all is compiled; returns when it may be timed.
    """
    from tessera.profiling.probe_engine import ProbeEngine

    schedule = algorithm.schedule
    if schedule.warmup > WARMUP:
        algorithm = replace(algorithm, warmup=WARMUP)  # type: ignore[call-arg]
    begun = time.perf_counter()
    engine = ProbeEngine(plan, algorithm, env)
    try:
        return _probe_ops(engine, turn) if ops else _probe(engine, begun, threads, turn)
    except EnvironmentFailed as failure:
        raise TesseraError(f"no profile can be taken, because `env` failed: {failure}") from failure
    finally:
        engine.close()


def _probe(engine: ProbeEngine, begun: float, threads: int, turn: Callable[[], None]) -> Probed:
    engine.start()
    engine.measure(1)
    compiled = time.perf_counter() - begun
    forget_peak_memory()
    turn()
    engine.clear()
    speed = CoreSpeed(on_accelerators(engine.plan))
    began = time.perf_counter()
    engine.measure(1)
    chunk, updates = max(1, int(PART_SECONDS / (time.perf_counter() - began))), 1
    if chunk > 1:  # else it is as good as any other
        engine.clear()
        began, updates = time.perf_counter(), 0
    while (
        not updates
        or (passed := time.perf_counter() - began) < SECONDS
        or (updates < LEAST_UPDATES and passed < MOST_SECONDS)
    ):
        engine.measure(chunk)
        speed.sample()
        updates += chunk
    watches = engine.stopwatches
    between, nodes, spans = (sum(getattr(s, name) for s in watches) for name in ("between", "nodes", "spans"))
    between = max(0.0, between - spans * watches[0].own_seconds())
    timings = _timings(engine, threads)
    exchanges = _exchanges(engine)
    per_node, memory = between / max(nodes, 1), peak_memory()
    return Probed(timings, exchanges, per_node, compiled, {}, speed=speed.mean, process_bytes=memory)


def _timings(engine: ProbeEngine, threads: int) -> dict[str, tuple[Timing, ...]]:
    import jax

    plan = engine.plan
    found: dict[str, tuple[Timing, ...]] = {}
    on_cpu = jax.default_backend() == "cpu"
    for i, stopwatch in enumerate(engine.stopwatches):
        placed = plan.fragments[i]
        plays = bool({"env", "act"} & set(placed.operators))
        envs = len(placed.held("act" if plays else "grad")[0]) * plan.envs_per_group // placed.devices
        for name, calls in stopwatch.calls.items():
            host = name in stopwatch.switches
            sleeps = stopwatch.switches[name] > SLEEPS * len(calls)
            as_timed = sleeps or not (host or on_cpu)
            works = [Work(c.seconds, c.cpu_seconds) for c in calls] if as_timed else undisturbed(calls)
            found[name] = (Timing(envs, 1 if host else threads, thinned(works)),)
    return found


def _exchanges(engine: ProbeEngine) -> tuple[ExchangeTime, ...]:
    found = []
    for i, stopwatch in enumerate(engine.stopwatches):
        for (channel, name), calls in stopwatch.exchanges.items():
            middle = statistics.median(work.seconds for work in undisturbed(calls))
            links, nbytes = engine.size_of(i, channel, name)
            found.append(ExchangeTime(name, links, nbytes, middle))
    return tuple(found)


def _probe_ops(engine: ProbeEngine, turn: Callable[[], None]) -> Probed:
    """Time each compiled Op, all of which are in the one fragment."""
    from tessera.profiling.op_timing import OpTimer
    from tessera.program.project import project

    engine.start()
    ops_of = OpTimer(project(engine.training.updates(), engine.plan, 0), dict(engine.replicas[0].slots))
    turn()
    speed = CoreSpeed(on_accelerators(engine.plan))
    found, dispatch = ops_of.seconds(speed.sample)
    ops = {name: (engine.plan.envs, seconds) for name, seconds in found.items()}
    return Probed({}, (), 0.0, 0.0, ops, dispatch, speed.mean)


def probed_to_json(found: Probed) -> dict[str, Any]:
    """Plain data."""
    exchanges = [[e.name, e.links, e.nbytes, e.seconds] for e in found.exchanges]
    numbers = ("per_node", "compile_seconds", "dispatch", "speed", "process_bytes")
    plain = {name: getattr(found, name) for name in numbers}
    return {"timings": timings_to_json(found.timings), "exchanges": exchanges, "ops": found.ops, **plain}


def probed_from_json(found: dict[str, Any]) -> Probed:
    """From plain data."""
    return Probed(
        timings_from_json(found["timings"], "timings"),
        tuple(ExchangeTime(*exchange) for exchange in found["exchanges"]),
        found["per_node"],
        found["compile_seconds"],
        {name: (int(envs), float(seconds)) for name, (envs, seconds) in found["ops"].items()},
        found["dispatch"],
        found["speed"],
        found["process_bytes"],
    )
