"""Greedy episodes of several runs, in batches that any worker of any engine can play."""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tessera.algorithms.contract import Algorithm, View
from tessera.channels.packing import from_leaves, leaves_of
from tessera.engines.factory import map_reduce
from tessera.envs.base import DeviceEnvironment
from tessera.envs.players import named_opponent
from tessera.evaluation.evaluator import Evaluation, Evaluator
from tessera.evaluation.opponents import LearnedOpponent, PlayerAlgorithm, evaluated_env
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


@dataclass(frozen=True)
class Player:
    """Who plays: the agent of a run, or somebody who needs no learning."""

    config: dict[str, Any]
    """The run's; of somebody else, that of a run in the same environment."""
    view: View | None = None
    """What the agent acts with."""
    name: str = ""
    """The name of somebody else."""


@dataclass(frozen=True)
class Pairing:
    """Whose greedy episodes are played, and for games against whom."""

    player: int
    """Number of a player."""
    opponent: str | int | None = None
    """Somebody who needs no learning, by name, or the number of a player whose agent it is; None: as is usual."""
    openings: int = 0
    """Moves at the beginning of a game that are drawn."""


def play_batches(
    players: Sequence[Player],
    pairings: Sequence[Pairing],
    episodes: int,
    seed: int,
    trust: Trust = False,
    **engine: Any,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Play greedy episodes of each pairing: its (returns, lengths).

    `trust` says which names may be imported; `engine` holds the options `engine`, `workers` and `address` of
    `map_reduce`.
    """
    sent = [{"config": p.config, "name": p.name, "view": leaves_of({"view": jax.device_get(p.view)})} for p in players]
    items = [
        {"run": k, "seed": batch_seed(seed, number), "episodes": min(BATCH, episodes - begin)}
        for k in range(len(pairings))
        for number, begin in enumerate(range(0, episodes, BATCH))
    ]
    names = trust if isinstance(trust, bool) else tuple(trust)
    pairs = [asdict(pairing) for pairing in pairings]
    play = functools.partial(_play, players=sent, pairings=pairs, trust=names, key=uuid.uuid4().hex)
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


@dataclass(frozen=True)
class _Sent:
    """What all batches of one evaluation share; `key` identifies it."""

    key: str
    players: list[dict[str, Any]] = field(compare=False)
    trust: Trust = field(compare=False)


def _play(
    item: dict[str, Any], players: list[dict[str, Any]], pairings: list[dict[str, Any]], trust: Trust, key: str
) -> dict[str, Any]:
    """Play one batch of episodes, in any process; `key` identifies the evaluation."""
    pairing = pairings[item["run"]]
    player = players[pairing["player"]]
    needed = {name: player["config"].get(name) for name in NEEDED}
    text = json.dumps([needed, player["name"], pairing["opponent"], pairing["openings"]])
    evaluator, like = _evaluator(_Sent(key, players, trust), text)
    evaluation = evaluator(_view(player, like), item["episodes"], item["seed"])
    return {"returns": evaluation.returns, "lengths": evaluation.lengths}


@functools.lru_cache(maxsize=2)
def _evaluator(sent: _Sent, text: str) -> tuple[Evaluator, View]:
    """The evaluator of all runs of one configuration against one opponent, and a view or its shapes; compiled once in
    each process."""
    use_compilation_cache()
    config, name, opponent, openings = json.loads(text)
    algorithm, env = rebuild(config, sent.trust)
    if name:
        assert isinstance(env, DeviceEnvironment)
        algorithm = PlayerAlgorithm(player=named_opponent(name, env)).bound_to(env)
    if isinstance(opponent, int):
        other = sent.players[opponent]
        its, _ = rebuild(other["config"], sent.trust)
        opponent = LearnedOpponent(str(opponent), its, _view(other, _shapes(its)))
    return Evaluator(algorithm, evaluated_env(env, opponent, openings)), _shapes(algorithm)


def _shapes(algorithm: Algorithm) -> View:
    """Shapes of what an algorithm acts with."""
    return jax.eval_shape(lambda key: acting(published(initial_state(algorithm, key, 1))), jax.random.key(0))


def _view(player: dict[str, Any], like: View) -> View:
    """What a player acts with; one that needs no learning only counts."""
    if player["name"]:
        return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), like)
    return from_leaves(player["view"], {"view": like})["view"]
