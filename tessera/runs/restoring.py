"""From a checkpoint to a snapshot that an engine goes on from, whichever plan wrote it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.algorithms.contract import Algorithm
from tessera.engines.base import Engine, Snapshot
from tessera.engines.replica.replica import horizon
from tessera.engines.replica.snapshots import fitted, with_horizon
from tessera.errors import TesseraError
from tessera.runs.checkpoint import Checkpoints
from tessera.runs.replay_resizing import read_snapshot


def load_for(
    engine: Engine,
    checkpoints: Checkpoints,
    update: int,
    algorithm: Algorithm,
    updates: int,
    note: Callable[[str], None],
) -> tuple[Snapshot, dict[str, Any]]:
    """The snapshot of an update for an engine and a run of `updates` updates, and what else the checkpoint tells."""
    arrays, meta = checkpoints.load(update)
    if meta["algorithm"] != algorithm.name:
        raise TesseraError(f"checkpoint {update} was made by {meta['algorithm']}, not {algorithm.name}")
    like = engine.template()
    arrays = fitted(arrays, like, engine.plan, note)
    snapshot = read_snapshot(like, arrays, f"checkpoint {update}", algorithm, engine.plan.batches)
    return with_horizon(snapshot, horizon(engine.plan, algorithm, updates)), meta
