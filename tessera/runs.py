"""Finished or interrupted runs, read back from their directories."""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tessera import rundir
from tessera.algorithms.base import Algorithm, State, View
from tessera.cache import use_compilation_cache
from tessera.checkpoint import Checkpoints, unflatten
from tessera.engines.packing import from_leaves, leaves_of
from tessera.envs import make as make_env
from tessera.envs.base import Environment
from tessera.errors import RunFailed, TesseraError
from tessera.evaluate import Evaluation, Evaluator
from tessera.fields import options_of
from tessera.imports import import_again
from tessera.mapping import map_reduce
from tessera.program.initial import initial_state
from tessera.program.training import published

BATCH = 100
"""Episodes of one item. It decides which episodes are played, like the seed; the number of workers does not."""
MADE_OF = ("algorithm", "env", "envs", "precision")
"""What of a run's configuration its algorithm and environment are made of."""


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
    algorithm, env = _made(config)
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


@dataclass(frozen=True)
class RunEvaluation(Evaluation):
    """Episodes that were played with the newest params of a run."""

    run: Path
    env: str
    update: int
    """Updates that had been made."""


def evaluate_run(
    folder: str | Path,
    episodes: int = 100,
    seed: int = 0,
    *,
    workers: int | None = None,
    engine: str | None = None,
    address: str | None = None,
) -> RunEvaluation:
    """Play greedy episodes with the newest params of a run; see `evaluate_runs`."""
    return evaluate_runs([folder], episodes, seed, workers=workers, engine=engine, address=address)[0]


def evaluate_runs(
    folders: Sequence[str | Path],
    episodes: int = 100,
    seed: int = 0,
    *,
    workers: int | None = None,
    engine: str | None = None,
    address: str | None = None,
) -> list[RunEvaluation]:
    """Play greedy episodes with the newest params of each run.

    Episodes are played in batches, each with a seed of its own, by as many workers of an engine (serial, local or ray;
    see `tessera.map_reduce`); which episodes are played does not depend on workers or engine. Workers of a cluster need
    not see the folders.
    """
    runs = [load_run(folder) for folder in folders]
    told = [{"config": run.config, "view": leaves_of({"view": jax.device_get(published(run.state))})} for run in runs]
    items = [
        {"run": k, "seed": batch_seed(seed, number), "episodes": min(BATCH, episodes - begin)}
        for k in range(len(runs))
        for number, begin in enumerate(range(0, episodes, BATCH))
    ]
    play = functools.partial(_play, runs=told, key=uuid.uuid4().hex)
    where = {"workers": workers, "engine": engine, "address": address, "platform": jax.local_devices()[0].platform}
    played = map_reduce(play, lambda batches: _join(items, batches), items, **where)
    found = []
    for k, (folder, run) in enumerate(zip(folders, runs, strict=True)):
        returns, lengths = played[k]
        if not len(returns):
            raise RunFailed(f"no greedy episode of {folder} came to an end: does {run.env.name} ever end?")
        found.append(RunEvaluation(returns, lengths, Path(folder), run.config["env"], run.update))
    return found


def batch_seed(seed: int, number: int) -> int:
    """The seed of one batch of episodes; that of the first is the seed itself."""
    return int(np.random.SeedSequence([seed % 2**32, number]).generate_state(1)[0] >> 1) if number else seed


def _join(items: list[dict[str, Any]], batches: list[dict[str, Any]]) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Returns and lengths of all episodes of each run."""
    out: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for run in dict.fromkeys(item["run"] for item in items):
        mine = [batch for item, batch in zip(items, batches, strict=True) if item["run"] == run]
        out[run] = tuple(np.concatenate([batch[name] for batch in mine]) for name in ("returns", "lengths"))  # type: ignore[assignment]
    return out


def _play(item: dict[str, Any], runs: list[dict[str, Any]], key: str) -> dict[str, Any]:
    """Play one batch of episodes, in whatever process; `key` is that of the evaluation."""
    run = runs[item["run"]]
    evaluator, like = _evaluator(key, json.dumps({name: run["config"].get(name) for name in MADE_OF}))
    found = evaluator(from_leaves(run["view"], {"view": like})["view"], item["episodes"], item["seed"])
    return {"returns": found.returns, "lengths": found.lengths}


@functools.lru_cache(maxsize=2)
def _evaluator(key: str, config: str) -> tuple[Evaluator, View]:
    """What plays all runs of one configuration, and a view in shape; compiled once in each process of an evaluation."""
    del key
    use_compilation_cache()
    algorithm, env = _made(json.loads(config))
    like = jax.eval_shape(lambda key: published(initial_state(algorithm, key, 1)), jax.random.key(0))
    return Evaluator(algorithm, env), like


def _made(config: dict[str, Any]) -> tuple[Algorithm, Environment]:
    """A run's algorithm and environment."""
    env = _environment(config["env"], config["precision"])
    return replace(_algorithm(config["algorithm"]).bind(env.spec), envs=config.get("envs") or 1), env


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
    cls = import_again(config["class"], f"the run's algorithm {config['class']} cannot be imported")
    if not (isinstance(cls, type) and issubclass(cls, Algorithm)):
        raise TesseraError(f"the run's algorithm {config['class']} is not an Algorithm: config.json is damaged")
    names = {f.name for f in options_of(cls)}
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in config.items() if k in names}
    return cls(**values)
