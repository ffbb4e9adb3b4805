"""Finished or interrupted runs, read back from their directories."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from tessera import rundir
from tessera.algorithms.base import Algorithm, State
from tessera.checkpoint import Checkpoints, unflatten
from tessera.envs import make as make_env
from tessera.envs.base import Environment
from tessera.errors import TesseraError
from tessera.evaluate import Evaluation, Evaluator
from tessera.fields import options_of
from tessera.program.initial import initial_state
from tessera.program.training import published


@dataclass(frozen=True)
class SavedRun:
    """What a run directory holds, ready to be played."""

    config: dict[str, Any]
    algorithm: Algorithm
    env: Environment
    state: State
    update: int


def load_run(folder: str | Path) -> SavedRun:
    """Read a run's configuration and its newest checkpoint."""
    folder = Path(folder)
    config = rundir.read_config(folder)
    env = _environment(config["env"], config["precision"])
    algorithm = replace(_algorithm(config["algorithm"]).bind(env.spec), envs=config.get("envs", 1))
    if not (folder / "checkpoints").is_dir():
        raise TesseraError(f"{folder} has no checkpoint yet: train a little longer, or --resume it")
    checkpoints = Checkpoints(folder / "checkpoints", read_only=True)
    update = checkpoints.latest()
    if update is None:
        raise TesseraError(f"{folder} has no checkpoint yet: train a little longer, or --resume it")
    arrays, _ = checkpoints.load(update)
    checkpoints.close()
    template = {"state": jax.eval_shape(lambda key: initial_state(algorithm, key, 1), jax.random.key(0))}
    template = jax.tree.map(lambda x: jax.numpy.zeros(x.shape, x.dtype), template)
    mine = {k: v for k, v in arrays.items() if k.startswith("state/")}
    state = unflatten(template, mine, f"checkpoint {update} of {folder}")["state"]
    return SavedRun(config, algorithm, env, state, update)


def evaluate_run(folder: str | Path, episodes: int = 100, seed: int = 0) -> Evaluation:
    """Play greedy episodes with the newest params of a run."""
    run = load_run(folder)
    return Evaluator(run.algorithm, run.env)(published(run.state), episodes, seed)


def _environment(name: str, precision: str) -> Environment:
    if ":" in name:
        return make_env(name, precision)
    try:  # a class or a factory that was given to tessera.train, under the name it was defined by
        return make_env(f"py:{name}", precision)
    except TesseraError as error:
        raise TesseraError(
            f"the run's environment {name!r} was given as an object and cannot be made again by that name ({error}): "
            "name it py:module.Class in tessera.train"
        ) from error


def _algorithm(config: dict[str, Any]) -> Algorithm:
    module, _, name = config["class"].rpartition(".")
    try:
        cls = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise TesseraError(
            f"the run's algorithm {config['class']} cannot be imported ({error}): is its folder on PYTHONPATH?"
        ) from error
    if not (isinstance(cls, type) and issubclass(cls, Algorithm)):
        raise TesseraError(f"the run's algorithm {config['class']} is not an Algorithm: config.json is damaged")
    names = {f.name for f in options_of(cls)}
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in config.items() if k in names}
    return cls(**values)
