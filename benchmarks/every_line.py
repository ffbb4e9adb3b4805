"""Does an agent ever lose? Every line of play against it is walked, on both sides.

    python benchmarks/every_line.py runs/tic_tac_toe

For games that are small enough, such as pgx:tic_tac_toe: the agent answers by its greedy moves, and the other side
plays all moves that the rules allow.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tessera.envs.base import Timestep
from tessera.runs.saved_run import load_run

BATCH = 256
MOST = 100_000
"""Positions, above which a game is too large."""


def walk(algorithm: Any, view: Any, game: Any, first: bool, seed: int = 0) -> dict[str, int]:
    """Games won, drawn and lost over all lines of play, with the agent as the first or the second to move."""

    def chosen(state: Any) -> Any:
        nothing = jnp.zeros((), bool)
        seen = Timestep(
            game.observe(state), 0.0, nothing, nothing, None, legal=game.legal(state), player=game.player(state),
            state=state,
        )  # fmt: skip
        return algorithm.greedy(view, algorithm.memory(jnp.int32(0)), seen, jax.random.key(seed))[0]

    choose = jax.jit(jax.vmap(chosen))
    step = jax.jit(jax.vmap(lambda state, action: game.step(state, action, jax.random.key(0))))
    start, _ = jax.jit(game.reset)(jax.random.key(seed))
    agent = int(game.player(start)) if first else 1 - int(game.player(start))
    found = {"won": 0, "drawn": 0, "lost": 0}
    states = jax.tree.map(lambda x: np.asarray(x)[None], start)
    while (count := len(jax.tree.leaves(states)[0])) and count < MOST:
        players, legal = np.asarray(jax.vmap(game.player)(states)), np.asarray(jax.vmap(game.legal)(states))
        own = players == agent
        moves = [[int(a)] for a in batched(choose, states)] if own.any() else [[]] * count
        moves = [moves[k] if own[k] else list(np.nonzero(legal[k])[0]) for k in range(count)]
        for k in np.nonzero(own)[0]:
            assert legal[k, moves[k][0]], "an illegal move"
        which = np.repeat(np.arange(count), [len(m) for m in moves])
        actions = np.asarray([a for m in moves for a in m], np.int32)
        after, _, reward, over, _ = batched(step, taken(states, which), actions)
        for value in reward[over][:, agent]:
            found["won" if value > 0 else "lost" if value < 0 else "drawn"] += 1
        states = taken(after, ~over)
    return found


def taken(arrays: Any, which: np.ndarray) -> Any:
    return jax.tree.map(lambda x: x[which], arrays)


def batched(function: Any, *arrays: Any) -> Any:
    """Call a function of a batch with batches of one size."""
    count, parts = len(jax.tree.leaves(arrays)[0]), []
    for begin in range(0, count, BATCH):
        which = np.resize(np.arange(begin, min(begin + BATCH, count)), BATCH)
        made = jax.tree.map(np.asarray, function(*taken(arrays, which)))
        parts.append(taken(made, np.arange(min(BATCH, count - begin))))
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def main(folder: Path) -> int:
    """Walk both sides; 1 if a game is lost."""
    run, lost = load_run(folder), 0
    for first in (True, False):
        found = walk(run.algorithm, run.view, run.env, first)
        lost += found["lost"]
        print(f"{'first' if first else 'second'} to move: {', '.join(f'{n:,} {what}' for what, n in found.items())}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
