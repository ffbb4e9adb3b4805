"""The run directory: config.json, plan.json, metrics.jsonl, TensorBoard events, checkpoints/, summary.json."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tessera.algorithms.contract import Algorithm
from tessera.errors import RunFailed, TesseraError
from tessera.support.fields import options_of
from tessera.support.files import read_json, refuse_links, write_json
from tessera.support.named_objects import module_of, name_of

MAY_CHANGE = ("steps", "target_return", "seeds", "preset", "system")
"""Entries of config.json that a resumed run may change, besides the capacity of a replay."""
ENTRIES = {"algorithm": dict, "env": str, "policy": str, "precision": str, "seed": int}
"""Entries that every config.json has."""
SAVED_AGENT = "agent"
"""Entry of config.json that only saved agents have."""


def algorithm_config(algorithm: Algorithm) -> dict[str, Any]:
    """The name, class and fields of an algorithm as plain data."""
    cls = type(algorithm)
    fields = {f.name: name_of(getattr(algorithm, f.name), f"--{f.name}") for f in options_of(algorithm)}
    return {"name": algorithm.name, "class": f"{module_of(cls)}.{cls.__qualname__}", **fields}


def run_name(config: dict[str, Any]) -> str:
    """What a run goes by: its system, with the algorithm where that has another name, or the algorithm alone."""
    system, algorithm = config.get("system"), config["algorithm"].get("name", "?")
    return algorithm if system in (None, algorithm) else f"{system} ({algorithm})"


def check_fresh(folder: Path) -> None:
    """Refuse a folder that already holds a run."""
    check_usable(folder)
    if (folder / "config.json").exists():
        raise TesseraError(
            f"{folder} already holds a run: go on with it by --resume (in Python resume=True), or choose another "
            "--run-dir (run_dir)"
        )


def check_usable(folder: Path) -> None:
    """Refuse a folder that cannot be created or written to, without creating it."""
    try:
        os.fspath(folder).encode()
    except UnicodeEncodeError:  # checkpoints are written by a library that takes text
        raise TesseraError(f"--run-dir {os.fspath(folder)!a} is not UTF-8: choose another name") from None
    nearest = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not nearest.is_dir():
        raise TesseraError(f"{nearest} is a file: choose another --run-dir")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise TesseraError(f"{nearest} may not be written to: choose another --run-dir")
    if folder.exists():
        refuse_links(folder)


def check_same(folder: Path, config: dict[str, Any]) -> None:
    """Refuse to resume a run under another configuration."""
    old, new = read_config(folder), json.loads(json.dumps(config))
    refuse_saved_agent(folder, old)
    if ("seeds" in old) != ("seeds" in new):
        held = "a population" if "population" in old else "several seeds" if "seeds" in old else "one seed"
        flag = "--population" if "population" in old or "population" in new else "--seeds"
        raise TesseraError(f"{folder} holds a run of {held}: {'add' if 'seeds' in old else 'leave out'} {flag}")
    if "capacity" in old["algorithm"] and "capacity" in new["algorithm"]:  # the replay is resized
        old["algorithm"]["capacity"] = new["algorithm"]["capacity"]
    may_change = set(MAY_CHANGE) - ({"seeds"} if old.get("population", {}).get("every") else set())  # all of them meet
    fixed = sorted((set(old) | set(new)) - may_change)
    difference = _first_difference(old, new, fixed)
    if difference is not None:
        name, before, after = difference
        raise TesseraError(
            f"{folder} was run with {name} = {before!r}, not {after!r}: resume with the same value, or start a new run"
        )


def refuse_saved_agent(folder: Path, config: dict[str, Any]) -> None:
    """Refuse to go on with the training of a saved agent."""
    if SAVED_AGENT in config:
        raise TesseraError(
            f"{folder} is a saved agent, without the optimiser's state that training goes on from: go on with the run "
            "folder that it came from"
        )


def _first_difference(old: dict[str, Any], new: dict[str, Any], names: list[str]) -> tuple[str, Any, Any] | None:
    """The first of `names` whose value changed, before and after; of an entry with fields, the first such field."""
    for name in names:
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        if not isinstance(before, dict) or not isinstance(after, dict):
            return name, before, after
        if before.get("name") != after.get("name"):
            return name, before.get("name"), after.get("name")
        return _first_difference(before, after, sorted(set(before) | set(after)))
    return None


def going_on(folder: Path, found: int | None) -> str:
    """What is said of a run that goes on from update `found`."""
    if not (folder / "config.json").exists():
        return f"nothing to resume in {folder}: starting from the beginning"
    where = "the beginning: no checkpoint was written yet" if found is None else f"update {found}"
    return f"resuming {folder} from {where}"


@contextmanager
def one_sentence_for_files(folder: Path | None, latest: Callable[[], int | None]) -> Iterator[None]:
    """A disk that is full or gone ends the run with a sentence; `latest` gives the update of the last checkpoint."""
    try:
        yield
    except OSError as error:
        if folder is None or (error.filename is None and error.strerror is None):
            raise
        update = latest()
        rest = "" if update is None else f"; update {update} is saved there, --resume goes on from it"
        raise RunFailed(f"{folder} cannot be written to ({error.strerror}){rest}") from error


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json of a run."""
    config = _read(folder, "config.json")
    for name, kind in ENTRIES.items():
        if name not in config:
            raise TesseraError(f"{folder / 'config.json'} is damaged: it lacks {name!r}")
        if not isinstance(config[name], kind):
            raise TesseraError(f"{folder / 'config.json'} is damaged: {name!r} is no {kind.__name__}")
    return config


def read_summary(folder: Path) -> dict[str, Any]:
    """Read summary.json of a finished run."""
    return _read(folder, "summary.json")


def read_plan(folder: Path) -> dict[str, Any]:
    """Read plan.json of a run."""
    return _read(folder, "plan.json")


def begin(folder: Path, config: dict[str, Any], plan: dict[str, Any]) -> None:
    """Create the folder and write config.json and plan.json."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "plan.json", plan)
        write_json(folder / "config.json", config)
    except OSError as error:
        raise TesseraError(f"{folder} cannot be written to ({error}): choose another --run-dir") from error


def note_processes(folder: Path | None, before: dict[str, int], found: dict[str, int]) -> dict[str, int]:
    """Keep processes.json up to date, and give back what it holds: which process is which replica."""
    if folder is not None and found != before:
        with suppress(OSError):  # nothing depends on it
            write_json(folder / "processes.json", found)
    return found


def _read(folder: Path, name: str) -> dict[str, Any]:
    if not (folder / name).exists():
        raise TesseraError(f"{folder} is not a run directory: it has no {name}")
    return read_json(folder / name)
