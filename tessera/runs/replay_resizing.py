"""Replays in checkpoints: left out if the user likes, and fitted to another size when a run is resumed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tessera.algorithms.contract import Algorithm
from tessera.runs.checkpoint import paths, unflatten
from tessera.errors import TesseraError
from tessera.stores.replay import Replay, ReplayBuffer, rebuilt

PARTS = ("buffer", "in_flight_priorities")
"""What of a snapshot belongs to a replay."""


def tell_size(algorithm: Algorithm, engine: Any, note: Callable[[str], None]) -> None:
    """Say how much room the replay takes in every checkpoint, if there is one."""
    if algorithm.store.persistent:
        held = sum(x.nbytes for x in jax.tree.leaves(engine.template()["buffer"]))
        note(f"checkpoints hold the replay, {held / 2**20:,.1f} MB (--no-checkpoint-replay leaves it out)")


def read_snapshot(
    template: dict[str, Any], arrays: dict[str, np.ndarray], where: str, algorithm: Algorithm, groups: int
) -> dict[str, Any]:
    """A snapshot from a checkpoint's arrays; one without a replay has no `buffer`, another's size is fitted to ours."""
    held = {name: x for name, x in arrays.items() if name.startswith("buffer/")}
    if not held:
        return unflatten({k: v for k, v in template.items() if k not in PARTS}, arrays, where)
    if "buffer" not in template or _capacity(held) in (None, _capacity_of(template["buffer"])):
        return unflatten(template, arrays, where)
    store = algorithm.store.split(groups)
    if type(store) is not Replay:
        raise TesseraError(
            f"{where} holds a replay of stacked frames, whose size cannot change: resume with the same --capacity"
        )
    others = {k: v for k, v in template.items() if k not in PARTS}
    rest = {name: x for name, x in arrays.items() if name.partition("/")[0] not in PARTS}
    snapshot = unflatten(others, rest, where)
    return snapshot | {"buffer": _fitted(store, template["buffer"], held, where)}


def _capacity(held: dict[str, np.ndarray]) -> int | None:
    version = held.get("buffer/version")
    return None if version is None else version.shape[1]


def _capacity_of(buffer: Any) -> int | None:
    return buffer.version.shape[1] if isinstance(buffer, ReplayBuffer) else None


def _fitted(store: Replay, like: ReplayBuffer, held: dict[str, np.ndarray], where: str) -> ReplayBuffer:
    """The newest rows of another buffer, group by group, in one of our size."""
    names = paths({"buffer": {"rows": like.rows}})
    odd = [name for name in names if name not in held]
    if odd or held["buffer/head"].shape[0] != like.head.shape[0]:
        raise TesseraError(f"{where} holds a replay of other rows or groups: resume with the configuration beside it")
    found = jax.tree.unflatten(jax.tree.structure(like.rows), [held[name] for name in names])
    entries = held.get("buffer/tree/0")
    parts = [
        rebuilt(
            store,
            jax.tree.map(lambda x, g=g: np.asarray(x)[g], like),
            jax.tree.map(lambda x, g=g: x[g], (found, held["buffer/version"])),
            (int(held["buffer/head"][g]), int(held["buffer/filled"][g]), held["buffer/largest"][g]),
            None if entries is None else entries[g],
        )
        for g in range(like.head.shape[0])
    ]
    return jax.tree.map(lambda *xs: np.stack(xs), *parts)
