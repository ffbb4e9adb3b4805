"""`--init-from RUN`: a new run starts from the params of another. The other folder is read as data, nothing more."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tessera.algorithms.contract import Algorithm, FirstParams, View
from tessera.errors import TesseraError
from tessera.program.initial import initial_state
from tessera.program.training_program import published
from tessera.runs import directory
from tessera.runs.checkpoint import unflatten
from tessera.runs.saved_run import NEWEST, Choice, newest_update, read_checkpoint, read_choice
from tessera.runs.seed_folders import run_folders, seed_folder
from tessera.support.trees import leaf_path

PARTS = ("params", "statistics")
"""What is taken of a checkpoint's state."""


def read_start(
    init_from: str | Path | None, folder: Path | None, resume: bool, seeds: list[int] | None, algorithm: Algorithm
) -> tuple[FirstParams | None, dict[str, Any] | None]:
    """What a run in `folder` starts from, and how config.json records that.

    A run that goes on knows by itself what it started from, and reads it again only if it has no checkpoint yet.
    """
    asked = None if init_from is None else _source(init_from)
    if resume and folder is not None and (folder / "config.json").exists():
        record = directory.read_config(folder).get("init_from")
        before = None if record is None else _source_of(record, folder)
        if asked not in (None, before):
            start = "random params" if before is None else "@".join(map(str, before))
            raise TesseraError(f"{folder} was begun from {start}: leave --init-from {init_from} out to go on with it")
        mine = [folder] if seeds is None else [seed_folder(folder, seed) for seed in seeds]
        if before is None or all(newest_update(each) is not None for each in mine if each is not None):
            return None, record
        asked = before
    if asked is None:
        return None, None
    source, choice = asked
    update, first = _read(source, choice, algorithm)
    return first, {"run": str(source), "checkpoint": choice, "update": update}


def _source(text: str | Path) -> tuple[Path, Choice]:
    """Which folder is meant, and which of its checkpoints: RUN, RUN@best or RUN@1200."""
    whole, (folder, at, choice) = Path(text), str(text).rpartition("@")
    if whole.exists() or not at:
        return whole, NEWEST
    return Path(folder), read_choice(choice, "--init-from")


def _source_of(record: Any, folder: Path) -> tuple[Path, Choice]:
    match record:
        case {"run": str(run), "checkpoint": int() | str() as choice}:
            return Path(run), read_choice(choice, f"init_from in {folder / 'config.json'}")
    raise TesseraError(f"{folder / 'config.json'} is damaged: 'init_from' names no run")


def _read(source: Path, choice: Choice, algorithm: Algorithm) -> tuple[int, FirstParams]:
    try:
        config = directory.read_config(source)
        if "seeds" in config:
            raise TesseraError(f"{source} holds several seeds: name one of them, such as {run_folders(source)[0]}")
        update, arrays, _ = read_checkpoint(source, choice)
    except TesseraError as error:
        raise TesseraError(f"--init-from: {error}") from error
    shapes = published(jax.eval_shape(lambda key: initial_state(algorithm, key, 1), jax.random.key(0)))
    like = {"state": View(shapes.params, (), shapes.statistics, ())}  # type: ignore[arg-type]  # only these are taken
    taken = {path: x for path, x in arrays.items() if path.split("/")[:2] in [["state", part] for part in PARTS]}
    _check_fit(f"--init-from {source}", directory.run_name(config), taken, like, algorithm.name)
    found: View = unflatten(like, taken, f"checkpoint {update} of {source}")["state"]
    return update, FirstParams(found.params, found.statistics)


def _check_fit(what: str, made_by: str, found: Mapping[str, Any], like: Any, name: str) -> None:
    """Refuse params that do not fit the algorithm of this `name`, and say which."""
    needed = {leaf_path(path): x.shape for path, x in jax.tree_util.tree_flatten_with_path(like)[0]}
    for path in sorted({*found, *needed}):
        leaf = path.removeprefix("state/")
        if path not in found or path not in needed:
            wrong = f"{'it lacks' if path not in found else 'only it has'} {leaf}"
        elif np.shape(found[path]) != needed[path]:
            wrong = f"its {leaf} has shape {np.shape(found[path])}, and {needed[path]} is needed"
        else:
            continue
        raise TesseraError(
            f"{what}: params of its {made_by} do not fit this run's {name} ({wrong}): choose a run with the same "
            "network and environment, or give this run the other's flags"
        )
