"""Greedy episodes of several runs, in batches that any worker of any engine can play."""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tessera.algorithms.contract import View
from tessera.channels.packing import from_leaves, leaves_of
from tessera.engines.factory import map_reduce
from tessera.evaluation.evaluator import Evaluation, Evaluator
from tessera.evaluation.opponents import evaluated_env
from tessera.evaluation.rebuild import NEEDED, rebuild
from tessera.evaluation.trust import Trust
from tessera.program.initial import initial_state
from tessera.program.training_program import acting, published
from tessera.support.cache import use_compilation_cache

BATCH = 100
"""Episodes in one batch. Like the seed, it decides which episodes are played; the number of workers does not."""


@dataclass(frozen=True)
class RunEvaluation(Evaluation):
    """Episodes played with the newest params of a run."""

    run: Path
    env: str
    update: int
    """Updates that these params had received."""


def play_batches(
    runs: Sequence[tuple[dict[str, Any], View]], episodes: int, seed: int, trust: Trust = False, **engine: Any
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Play greedy episodes of each run, given as (configuration, view): (returns, lengths) of each run.

    `trust` says which names may be imported; `engine` holds the options `engine`, `workers` and `address` of
    `map_reduce`.
    """
    sent = [{"config": config, "view": leaves_of({"view": jax.device_get(view)})} for config, view in runs]
    items = [
        {"run": k, "seed": batch_seed(seed, number), "episodes": min(BATCH, episodes - begin)}
        for k in range(len(runs))
        for number, begin in enumerate(range(0, episodes, BATCH))
    ]
    names = trust if isinstance(trust, bool) else tuple(trust)
    play = functools.partial(_play, runs=sent, trust=names, key=uuid.uuid4().hex)
    platform = jax.local_devices()[0].platform
    return map_reduce(play, lambda batches: _join(items, batches), items, platform=platform, **engine)


def play_here(evaluator: Evaluator, view: View, episodes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Play the same batches of one run with an evaluator that is there: (returns, lengths)."""
    begins = range(0, episodes, BATCH)
    played = [evaluator(view, min(BATCH, episodes - at), batch_seed(seed, k)) for k, at in enumerate(begins)]
    return np.concatenate([each.returns for each in played]), np.concatenate([each.lengths for each in played])


def batch_seed(seed: int, number: int) -> int:
    """The seed of one batch of episodes; the first batch has `seed` itself."""
    return int(np.random.SeedSequence([seed % 2**32, number]).generate_state(1)[0] >> 1) if number else seed


def _join(items: list[dict[str, Any]], batches: list[dict[str, Any]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns and lengths of all episodes of each run."""
    runs: list[Any] = []
    for run in dict.fromkeys(item["run"] for item in items):
        played = [batch for item, batch in zip(items, batches, strict=True) if item["run"] == run]
        runs.append(tuple(np.concatenate([batch[name] for batch in played]) for name in ("returns", "lengths")))
    return runs


def _play(item: dict[str, Any], runs: list[dict[str, Any]], trust: Trust, key: str) -> dict[str, Any]:
    """Play one batch of episodes, in any process; `key` identifies the evaluation."""
    run = runs[item["run"]]
    needed = {name: run["config"].get(name) for name in (*NEEDED, "opponent")}
    evaluator, like = _evaluator(key, json.dumps([needed, trust]))
    evaluation = evaluator(from_leaves(run["view"], {"view": like})["view"], item["episodes"], item["seed"])
    return {"returns": evaluation.returns, "lengths": evaluation.lengths}


@functools.lru_cache(maxsize=2)
def _evaluator(key: str, text: str) -> tuple[Evaluator, View]:
    """The evaluator of all runs of one configuration, and the shapes of a view; compiled once in each process."""
    del key
    use_compilation_cache()
    config, trust = json.loads(text)
    algorithm, env = rebuild(config, trust)
    like = jax.eval_shape(lambda key: acting(published(initial_state(algorithm, key, 1))), jax.random.key(0))
    return Evaluator(algorithm, evaluated_env(env, config["opponent"])), like
