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
from tessera.evaluation.rebuild import NEEDED, rebuild
from tessera.program.initial import initial_state
from tessera.program.training import published
from tessera.support.cache import use_compilation_cache

BATCH = 100
"""Episodes of one batch. It decides which episodes are played, like the seed; the number of workers does not."""


@dataclass(frozen=True)
class RunEvaluation(Evaluation):
    """Episodes that were played with the newest params of a run."""

    run: Path
    env: str
    update: int
    """Updates that had been made."""


def play_batches(
    runs: Sequence[tuple[dict[str, Any], View]], episodes: int, seed: int, **where: Any
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Play greedy episodes of each run, given by its configuration and a view; returns and lengths of each run.

    `where` names the engine, its workers and its address, as for `map_reduce`.
    """
    sent = [{"config": config, "view": leaves_of({"view": jax.device_get(view)})} for config, view in runs]
    items = [
        {"run": k, "seed": batch_seed(seed, number), "episodes": min(BATCH, episodes - begin)}
        for k in range(len(runs))
        for number, begin in enumerate(range(0, episodes, BATCH))
    ]
    play = functools.partial(_play, runs=sent, key=uuid.uuid4().hex)
    platform = jax.local_devices()[0].platform
    return map_reduce(play, lambda batches: _join(items, batches), items, platform=platform, **where)


def batch_seed(seed: int, number: int) -> int:
    """The seed of one batch of episodes; that of the first is the seed itself."""
    return int(np.random.SeedSequence([seed % 2**32, number]).generate_state(1)[0] >> 1) if number else seed


def _join(items: list[dict[str, Any]], batches: list[dict[str, Any]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns and lengths of all episodes of each run."""
    out: list[Any] = []
    for run in dict.fromkeys(item["run"] for item in items):
        mine = [batch for item, batch in zip(items, batches, strict=True) if item["run"] == run]
        out.append(tuple(np.concatenate([batch[name] for batch in mine]) for name in ("returns", "lengths")))
    return out


def _play(item: dict[str, Any], runs: list[dict[str, Any]], key: str) -> dict[str, Any]:
    """Play one batch of episodes, in whatever process; `key` is that of the evaluation."""
    run = runs[item["run"]]
    evaluator, like = _evaluator(key, json.dumps({name: run["config"].get(name) for name in NEEDED}))
    found = evaluator(from_leaves(run["view"], {"view": like})["view"], item["episodes"], item["seed"])
    return {"returns": found.returns, "lengths": found.lengths}


@functools.lru_cache(maxsize=2)
def _evaluator(key: str, config: str) -> tuple[Evaluator, View]:
    """What plays all runs of one configuration, and a view in shape; compiled once in each process of an evaluation."""
    del key
    use_compilation_cache()
    algorithm, env = rebuild(json.loads(config))
    like = jax.eval_shape(lambda key: published(initial_state(algorithm, key, 1)), jax.random.key(0))
    return Evaluator(algorithm, env), like
