"""Games between the agents of runs: each pair plays, on both sides."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tessera.envs.base import Environment
from tessera.errors import TesseraError
from tessera.evaluation.many_runs import Pairing, Player, play_batches
from tessera.evaluation.opponents import OPPONENTS, LearnedOpponent, evaluated_env, is_player
from tessera.evaluation.outcomes import Outcomes
from tessera.evaluation.ratings import Games
from tessera.evaluation.trust import Trust
from tessera.runs.saved_run import Choice, SavedRun, load_run
from tessera.support.seeds import check_seed


def find_opponent(name: str | None, env: Environment, trust: Trust) -> str | SavedRun | None:
    """The opponent of that name: somebody who needs no learning, or the run in that folder, which must be of the same
    game."""
    if name is None or is_player(name):
        return name
    folder = Path(name)
    if not folder.is_dir():
        known = ", ".join(OPPONENTS)
        raise TesseraError(f"--opponent {name}: choose one of {known}, or the folder of a run; there is no such folder")
    return _of_game(load_run(folder, trust), env)


def against(env: Environment, opponent: str | SavedRun | None, openings: int = 0) -> Environment:
    """The environment that greedy episodes are played in, with an opponent that was found."""
    return evaluated_env(env, as_opponent(opponent) if isinstance(opponent, SavedRun) else opponent, openings)


def as_opponent(saved: SavedRun) -> LearnedOpponent:
    """The agent of a run, for the other side of a game."""
    return LearnedOpponent(str(saved.folder), saved.algorithm, saved.view)


def as_player(saved: SavedRun) -> Player:
    """The agent of a run, as any process can make it."""
    return Player(saved.config, saved.view)


def _of_game(saved: SavedRun, env: Environment) -> SavedRun:
    if saved.env.name != env.name:
        raise TesseraError(f"{saved.folder} plays {saved.env.name}, and not {env.name}: choose runs of one game")
    return saved


def play_match(
    names: Sequence[str],
    games: int,
    openings: int,
    seed: int,
    checkpoint: Choice = "newest",
    trust: Trust = False,
    **engine: Any,
) -> list[Games]:
    """Everybody against everybody: folders of runs of one game, and players that need no learning.

    The first moves of each game, as many as `openings`, are drawn. `engine` holds the options `engine`, `workers` and
    `address` of `map_reduce`: they do not change the games.
    """
    check_seed(seed)
    runs = {name: load_run(name, trust, checkpoint) for name in names if not is_player(name)}
    if not runs:
        raise TesseraError("none of these is a run: name at least one folder, so that it is known what is played")
    first = next(iter(runs.values()))
    for name in names:  # before any game is played
        against(first.env, _of_game(runs[name], first.env) if name in runs else name)
    players = [as_player(runs[name]) if name in runs else Player(first.config, name=name) for name in names]
    pairs = list(itertools.combinations(range(len(names)), 2))
    pairings = [Pairing(i, j if names[j] in runs else names[j], openings) for i, j in pairs]
    played = play_batches(players, pairings, games, seed, trust, **engine)
    return [Games(i, j, *Outcomes.of(returns)) for (i, j), (returns, _) in zip(pairs, played, strict=True)]
