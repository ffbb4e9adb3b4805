"""A run, or an agent that was saved, read back from its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from tessera.algorithms.contract import Algorithm, View
from tessera.envs.base import Environment
from tessera.errors import TesseraError
from tessera.evaluation.rebuild import rebuild
from tessera.evaluation.trust import Trust
from tessera.program.initial import initial_state
from tessera.program.training_program import acting, published
from tessera.runs import directory
from tessera.runs.best_checkpoint import read_best
from tessera.runs.checkpoint import Arrays, Checkpoints, unflatten
from tessera.runs.seed_folders import run_folders

NEWEST, BEST = "newest", "best"
Choice = int | str
"""Which checkpoint: newest, best, or the number of its update."""


@dataclass(frozen=True)
class SavedRun:
    """What acting needs of one checkpoint: configuration, algorithm, environment, and the params with their moments."""

    folder: Path
    config: dict[str, Any]
    algorithm: Algorithm
    env: Environment
    view: View
    """What `act` reads, as NumPy arrays."""
    update: int
    """Updates that the params had received."""
    meta: dict[str, Any]
    """What else the checkpoint notes."""
    env_given: bool = False
    """Whether the environment was passed by the user, and not made by the name that the run has for it."""


def read_choice(given: Choice | None, what: str) -> Choice:
    """Which checkpoint is meant: newest, best, or that of an update, also as text; None: the newest."""
    if given is None or given in (NEWEST, BEST):
        return NEWEST if given is None else given
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    if isinstance(given, str) and given.isdecimal():
        return int(given)
    raise TesseraError(f"{what} {given}: choose newest, best, or the number of an update")


def load_run(folder: str | Path, trust: Trust = False, checkpoint: Choice | None = None, env: Any = None) -> SavedRun:
    """Read a run's configuration and a checkpoint, by default the newest; `trust` says which names may be imported.

    `env` stands for the environment that the configuration names.
    """
    folder, choice = Path(folder), read_choice(checkpoint, "--checkpoint")
    config = directory.read_config(folder)
    if "seeds" in config:
        raise TesseraError(f"{folder} holds several seeds: name one of them, such as {run_folders(folder)[0]}")
    try:
        algorithm, made = rebuild(config, trust, env)
        view = jax.eval_shape(lambda key: acting(published(initial_state(algorithm, key, 1))), jax.random.key(0))
    except TesseraError as error:
        raise TesseraError(f"{folder}: {error}") from error
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:  # values of a wrong kind
        first = str(error).partition("\n")[0]
        raise TesseraError(
            f"{folder}: its config.json gives no algorithm and environment ({type(error).__name__}: {first}): it is "
            "damaged, or they have changed since"
        ) from error
    update, arrays, meta = read_checkpoint(folder, choice)
    if meta.get("algorithm") != algorithm.name:
        raise TesseraError(
            f"checkpoint {update} of {folder} was made by another algorithm ({meta.get('algorithm')}) than config.json "
            f"names ({algorithm.name}): config.json has changed since"
        )
    parts = tuple(f"state/{part}" for part in View._fields if part != "target")
    read = {path: array for path, array in arrays.items() if path.startswith(parts)}
    try:
        view = unflatten({"state": view}, read, f"checkpoint {update} of {folder}")["state"]
    except TesseraError as error:
        if env is None:
            raise
        raise TesseraError(
            f"{folder}: its params are for other observations or actions than those of env={env}: pass the environment "
            "that the run was trained in"
        ) from error
    return SavedRun(folder, config, algorithm, made, view, update, meta, env is not None)


def statistics_hint(algorithm: Algorithm, env: Environment) -> str:
    """What an agent lacks that its environments have learned; empty if they have learned nothing."""
    if not env.keeps:
        return ""
    instead = "; --normalise-observations has them in the agent" if hasattr(algorithm, "normalise_observations") else ""
    return (
        f"{env.keeps} stay with the environments and are not saved with the params, so an agent that is loaded acts "
        f"only on observations that were normalised alike{instead}"
    )


def newest_update(folder: Path) -> int | None:
    """The update of a run's newest checkpoint."""
    if not (folder / "checkpoints").is_dir():
        return None
    checkpoints = Checkpoints(folder / "checkpoints", read_only=True)
    try:
        return checkpoints.latest()
    finally:
        checkpoints.close()


def read_checkpoint(folder: Path, wanted: Choice) -> tuple[int, Arrays, dict[str, Any]]:
    """The update of the wanted checkpoint, its arrays without the replay's, and its metadata."""
    if wanted == BEST:
        best = read_best(folder)
        if best is None:
            raise TesseraError(f"{folder} keeps no best checkpoint: train it with --evaluate-every, or take the newest")
        return best
    updates: list[int] = []
    if (folder / "checkpoints").is_dir():
        checkpoints = Checkpoints(folder / "checkpoints", read_only=True)
        updates = checkpoints.updates()
    if not updates:
        raise TesseraError(f"{folder} has no checkpoint yet: train a little longer, or --resume it")
    update = updates[-1] if wanted == NEWEST else int(wanted)
    if update not in updates:
        best = read_best(folder)
        if best is not None and best[0] == update:
            return best
        kept = ", ".join(map(str, updates)) + (f" and, as the best, {best[0]}" if best is not None else "")
        raise TesseraError(f"{folder} has no checkpoint {wanted}: it keeps those of update {kept}")
    arrays, meta = checkpoints.load(update, large=False)
    checkpoints.close()
    return update, arrays, meta
