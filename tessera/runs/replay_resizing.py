"""Replays in checkpoints: optional, and resized when a run is resumed under another capacity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tessera.algorithms.contract import Algorithm
from tessera.errors import TesseraError
from tessera.runs.checkpoint import paths, unflatten
from tessera.stores.replay import Replay, ReplayBuffer, rebuilt
from tessera.support.streamed_arrays import HeldArray, Piece, StreamedArray

PARTS = ("buffer", "in_flight_priorities")
"""Entries of a snapshot that belong to a replay."""


def tell_size(algorithm: Algorithm, engine: Any, note: Callable[[str], None]) -> None:
    """Note the size of the replay in every checkpoint, if there is one."""
    if algorithm.store.persistent:
        size = sum(x.nbytes for x in jax.tree.leaves(engine.template()["buffer"]))
        note(f"checkpoints hold the replay, {size / 2**20:,.1f} MB (--no-checkpoint-replay leaves it out)")


def read_snapshot(
    template: dict[str, Any], arrays: dict[str, Any], where: str, algorithm: Algorithm, groups: int
) -> dict[str, Any]:
    """A snapshot like `template` from a checkpoint's arrays.

    A replay of another capacity is resized. A checkpoint without a replay gives a snapshot without `buffer`.
    """
    without_replay = {k: v for k, v in template.items() if k not in PARTS}
    saved = {name: x for name, x in arrays.items() if name.startswith("buffer/")}
    if not saved:
        return unflatten(without_replay, arrays, where)
    if "buffer" not in template or _saved_capacity(saved) in (None, _capacity(template["buffer"])):
        return unflatten(template, arrays, where)
    store = algorithm.store.split(groups)
    if type(store) is not Replay:
        raise TesseraError(
            f"{where} holds a replay of stacked frames, whose size cannot change: resume with the same --capacity"
        )
    others = {name: x for name, x in arrays.items() if name.partition("/")[0] not in PARTS}
    snapshot = unflatten(without_replay, others, where)
    return snapshot | {"buffer": _resized(store, template["buffer"], saved, where)}


def _saved_capacity(saved: dict[str, Any]) -> int | None:
    version = saved.get("buffer/version")
    return None if version is None else version.shape[1]


def _capacity(buffer: Any) -> int | None:
    return buffer.version.shape[1] if isinstance(buffer, ReplayBuffer) else None


def _resized(store: Replay, like: ReplayBuffer, saved: dict[str, Any], where: str) -> ReplayBuffer:
    """A buffer of the size of `like` with the newest rows of a saved one, group by group."""
    names = paths({"buffer": {"rows": like.rows}})
    groups = like.head.shape[0]
    if not set(names) <= set(saved) or saved["buffer/head"].shape[0] != groups:
        raise TesseraError(
            f"{where} holds a replay of other rows or groups: resume with the configuration in the run's config.json"
        )
    version = np.asarray(saved["buffer/version"])
    entries = np.asarray(saved["buffer/tree/0"]) if "buffer/tree/0" in saved else None
    numbers = np.arange(version.shape[1])
    number_of = like._replace(rows=np.zeros(like.version.shape, numbers.dtype))
    buffers = [
        rebuilt(
            store,
            jax.tree.map(lambda x, g=g: np.asarray(x)[g], number_of),
            (numbers, version[g]),
            (int(saved["buffer/head"][g]), int(saved["buffer/filled"][g]), saved["buffer/largest"][g]),
            None if entries is None else entries[g],
        )
        for g in range(groups)
    ]
    found = jax.tree.map(lambda *xs: np.stack(xs), *buffers)
    rows = [MovedRows(saved[name], found.rows, found.filled) for name in names]
    return found._replace(rows=jax.tree.unflatten(jax.tree.structure(like.rows), rows))


class MovedRows(StreamedArray):
    """Rows of an array in another order: row `numbers[g, k]` of group g becomes row k, of which `filled[g]` exist."""

    def __init__(self, source: Any, numbers: np.ndarray, filled: np.ndarray) -> None:
        self._source = source if isinstance(source, StreamedArray) else HeldArray(np.asarray(source))
        self._numbers, self._filled = numbers, filled
        self.shape, self.dtype = (*numbers.shape, *source.shape[2:]), np.dtype(source.dtype)

    def read(self, piece: Piece) -> np.ndarray:
        """Rows of one group; zeros where there is none."""
        out = np.zeros((piece.stop - piece.start, *self.shape[2:]), self.dtype)
        wanted = self._numbers[piece.group, piece.start : min(piece.stop, int(self._filled[piece.group]))]
        done = 0
        for run in np.split(wanted, np.flatnonzero(np.diff(wanted) != 1) + 1):  # a ring: two runs at the most
            if len(run):
                part = Piece(piece.group, int(run[0]), int(run[-1]) + 1)
                out[done : done + len(run)] = self._source.read(part)
                done += len(run)
        return out
