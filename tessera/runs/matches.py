"""Games between the agents of runs: each pair plays, on both sides."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from tessera.envs.base import Environment
from tessera.errors import TesseraError
from tessera.evaluation.evaluator import Evaluator
from tessera.evaluation.many_runs import play_here
from tessera.evaluation.opponents import OPPONENTS, LearnedOpponent, evaluated_env
from tessera.evaluation.ratings import Games
from tessera.evaluation.trust import Trust
from tessera.runs.saved_run import Choice, SavedRun, load_run


def find_opponent(name: str | None, env: Environment, trust: Trust) -> str | LearnedOpponent | None:
    """The opponent of that name, which may be the folder of a run."""
    if name is None or name in OPPONENTS:
        return name
    folder = Path(name)
    if not folder.is_dir():
        known = ", ".join(OPPONENTS)
        raise TesseraError(f"--opponent {name}: choose one of {known}, or the folder of a run; there is no such folder")
    return as_opponent(load_run(folder, trust), env)


def as_opponent(saved: SavedRun, env: Environment) -> LearnedOpponent:
    """The agent of a run, for the other side of a game."""
    if saved.env.name != env.name:
        raise TesseraError(f"{saved.folder} plays {saved.env.name}, and not {env.name}: choose runs of one game")
    return LearnedOpponent(str(saved.folder), saved.algorithm, saved.view)


def play_match(
    names: Sequence[str], games: int, openings: int, seed: int, checkpoint: Choice = "newest", trust: Trust = False
) -> list[Games]:
    """Everybody against everybody: folders of runs of one game, and opponents that need no learning.

    The first moves of each game, as many as `openings`, are drawn.
    """
    runs = {name: load_run(name, trust, checkpoint) for name in names if name not in OPPONENTS}
    if not runs:
        raise TesseraError("none of these is a run: name at least one folder, so that it is known what is played")
    env = next(iter(runs.values())).env
    results = []
    for i, j in itertools.combinations(range(len(names)), 2):
        first, second = (i, j) if names[i] in runs else (j, i)
        if names[first] not in runs:
            continue  # what these two have in common is no run
        saved = runs[names[first]]
        as_opponent(saved, env)
        other = as_opponent(runs[names[second]], env) if names[second] in runs else names[second]
        evaluator = Evaluator(saved.algorithm, evaluated_env(env, other, openings))
        returns, _ = play_here(evaluator, saved.view, games, seed)
        won, lost = int((returns > 0).sum()), int((returns < 0).sum())
        results.append(Games(first, second, won, len(returns) - won - lost, lost))
    return results
