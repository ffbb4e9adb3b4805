"""Solvers of games: they know what every move is worth, and are called from compiled programs on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tessera.envs.base import DeviceEnvironment
from tessera.errors import TesseraError, unknown_name

ROWS, COLUMNS = 6, 7
KEPT = 1 << 17
"""Positions whose scores are kept: games are played side by side, and many are alike."""

Scores = Callable[[Any], jax.Array]
"""state -> what each move is worth to who moves, float32 [n]: above 0 wins, below 0 loses, and more is better."""


def find_solver(name: str, game: DeviceEnvironment) -> Scores:
    """The solver of that name, for the game that it knows."""
    if name not in SOLVERS:
        raise unknown_name("solver", name, SOLVERS)
    wanted, make = SOLVERS[name]
    if game.name.partition("?")[0] != wanted:
        raise TesseraError(f"solver:{name} plays {wanted}, and not {game.name}: choose another opponent, such as mcts")
    scores = make()

    def of_state(state: Any) -> jax.Array:
        env: Any = game
        while hasattr(env, "inner_state"):  # wrappers around the game
            state, env = env.inner_state(state), env.env
        return scores(state)

    return of_state


def _bitbully() -> Scores:
    try:
        import bitbully  # noqa: F401
    except ImportError as error:
        raise TesseraError(
            "solver:bitbully needs a package that is not installed (bitbully): run pip install bitbully"
        ) from error
    wanted = jax.ShapeDtypeStruct((COLUMNS,), jnp.float32)

    def scores(state: Any) -> jax.Array:
        board = state._x.board.reshape(ROWS, COLUMNS).astype(jnp.int8)
        return jax.pure_callback(_scored_boards, wanted, board, vmap_method="expand_dims")

    return scores


def _scored_boards(boards: Any) -> np.ndarray:
    """Scores [..., columns] of boards [..., rows, columns], from the top: -1 for an empty cell, 0 for who began."""
    given = np.asarray(boards, np.int8)
    found = [_scored(board.tobytes()) for board in given.reshape(-1, ROWS, COLUMNS)]
    return np.asarray(found, np.float32).reshape(*given.shape[:-2], COLUMNS)


@functools.lru_cache(maxsize=KEPT)
def _scored(board: bytes) -> tuple[float, ...]:
    """Scores of one board: 1 is a win with the last stone, 2 with the one before, and so on; full columns have -inf.
    Boards of games that are over are asked about too, since games are played side by side: they are all 0."""
    import bitbully

    cells = np.frombuffer(board, np.int8).reshape(ROWS, COLUMNS)
    columns = (cells[::-1].T + 1).tolist()  # from the bottom; 1 and 2 are the players
    position = bitbully.Board(columns)
    if position.is_game_over():
        return (0.0,) * COLUMNS
    scores = _solver().score_all_moves(position)
    return tuple(float(scores.get(column, -np.inf)) for column in range(COLUMNS))


@functools.lru_cache(maxsize=1)
def _solver() -> Any:
    import bitbully

    return bitbully.BitBully()


SOLVERS: dict[str, tuple[str, Callable[[], Scores]]] = {"bitbully": ("pgx:connect_four", _bitbully)}
"""Name -> the game that it knows, and what makes it."""
