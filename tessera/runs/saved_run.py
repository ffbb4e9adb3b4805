"""A finished or interrupted run, read back from its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from tessera.algorithms.contract import Algorithm, State
from tessera.envs.base import Environment
from tessera.errors import TesseraError
from tessera.evaluation.rebuild import rebuild
from tessera.evaluation.trust import Trust
from tessera.program.initial import initial_state
from tessera.runs import directory
from tessera.runs.checkpoint import Checkpoints, unflatten
from tessera.runs.seeds import run_folders


@dataclass(frozen=True)
class SavedRun:
    """Configuration, algorithm, environment and newest state of a run."""

    config: dict[str, Any]
    algorithm: Algorithm
    env: Environment
    state: State
    update: int


def load_run(folder: str | Path, trust: Trust = False) -> SavedRun:
    """Read a run's configuration and its newest checkpoint; `trust` says which names may be imported."""
    folder = Path(folder)
    config = directory.read_config(folder)
    if "seeds" in config:
        raise TesseraError(f"{folder} holds several seeds: name one of them, such as {run_folders(folder)[0]}")
    try:
        algorithm, env = rebuild(config, trust)
        template = {"state": jax.eval_shape(lambda key: initial_state(algorithm, key, 1), jax.random.key(0))}
    except TesseraError as error:
        raise TesseraError(f"{folder}: {error}") from error
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:  # values of a wrong kind
        first = str(error).partition("\n")[0]
        raise TesseraError(
            f"{folder}: its config.json gives no algorithm and environment ({type(error).__name__}: {first}): it is "
            "damaged, or they have changed since"
        ) from error
    checkpoints, update = None, None
    if (folder / "checkpoints").is_dir():
        checkpoints = Checkpoints(folder / "checkpoints", read_only=True)
        update = checkpoints.latest()
    if checkpoints is None or update is None:
        raise TesseraError(f"{folder} has no checkpoint yet: train a little longer, or --resume it")
    arrays, _ = checkpoints.load(update, large=False)
    checkpoints.close()
    state_arrays = {k: v for k, v in arrays.items() if k.startswith("state/")}
    state = unflatten(template, state_arrays, f"checkpoint {update} of {folder}")["state"]
    return SavedRun(config, algorithm, env, state, update)
