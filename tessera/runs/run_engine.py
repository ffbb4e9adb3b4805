"""The engine of a run, with the options that the user gave for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tessera.algorithms.contract import Algorithm
from tessera.engines.base import Engine, ReplicaEvent
from tessera.engines.factory import make_engine
from tessera.engines.ray_backend import cluster
from tessera.engines.replica.samples import SpanSamples
from tessera.engines.replica.trace import Recording, TraceFile
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
    on_event: Callable[[ReplicaEvent], None],
    folder: Path | None,
) -> Engine:
    """Make it, for a run in `folder`, where replicas of other machines put what they print; `on_event` is called for
    replicas that die."""
    address = cluster.prepare(options.address) if plan.engine == "ray" else None
    return make_engine(
        plan, algorithm, env, seed, updates, address, timeout=options.timeout, start_timeout=options.start_timeout,
        restarts=options.restarts, note=note, on_event=on_event, recording=_recording(options.trace, folder),
        trust_network=options.trust_network, logs="" if folder is None else str(folder / "logs"),
    )  # fmt: skip


def _recording(trace: Path | None, folder: Path | None) -> Recording | None:
    """What records the replicas: all that they do into a trace, samples of it for those who watch a run folder."""
    whole = None if trace is None else TraceFile(str(trace))
    return whole if folder is None else SpanSamples(whole)
