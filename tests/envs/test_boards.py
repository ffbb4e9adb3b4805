"""Games in text: boards as they are drawn, moves as they are written."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from tessera.envs import make
from tessera.envs.boards import BOARDS, chess_target
from tessera.envs.pgx import GAMES


def played(game: str, moves: list[str], seed: int = 0):
    env = make(f"pgx:{game}")
    step = jax.jit(env.step)
    state, _ = jax.jit(env.reset)(jax.random.key(seed))
    for move in moves:
        action = env.move_names(state).index(move)
        assert env.legal(state)[action], move
        state, *_ = step(state, action, jax.random.key(0))
    return env, state


DRAWN = {
    "tic_tac_toe": (["b2", "a1", "c3"], "   a b c\n 1 O . .\n 2 . X .\n 3 . . X"),
    "connect_four": (
        ["d", "d", "a"],
        "a b c d e f g\n" + ". . . . . . .\n" * 4 + ". . . O . . .\nX . . X . . .\n0 1 2 3 4 5 6",
    ),
}
SLOWLY_DRAWN = {
    "othello": (["d3"], " 3 . . . X . . . .\n 4 . . . X X . . .\n 5 . . . X O . . .", "X has 4, O has 1"),
    "hex": (["c1", "swap", "b2"], "   a b c d e f g h i j k\n 1 . . . .", "   3 O . . .", "  2 . X . ."),
    "go_9x9": (["a1", "b1", "j9", "a2"], " 9 . . . . . . . . X\n", " 2 O .", " 1 . O", "O has taken 1"),
    "gardner_chess": (["a2a3", "b4a3"], " 5 r n b q k\n 4 p . p p p\n 3 p . . . .\n 2 . P P P P\n 1 R N B Q K"),
    "animal_shogi": (["b3b2", "b1b2"], " 1 g . e\n 2 . l .\n 3 . . .\n 4 E L G", "capitals hold C, the others hold c"),
}


@pytest.mark.parametrize("game", DRAWN)
def test_a_board_is_drawn_as_it_stands(game):
    moves, board = DRAWN[game]
    env, state = played(game, moves)
    assert env.drawn(state, 0) == board


@pytest.mark.slow
@pytest.mark.parametrize("game", SLOWLY_DRAWN)
def test_a_larger_board_is_drawn_as_it_stands(game):
    moves, *parts = SLOWLY_DRAWN[game]
    env, state = played(game, moves)
    for part in parts:
        assert part in env.drawn(state, 0)


def test_cards_are_shown_to_who_holds_them():
    env, state = played("leduc_holdem", ["call", "raise"])
    cards = ["JQK"[card] for card in np.asarray(state.game._cards)]
    for player in (0, 1):
        shown = f"your card: {cards[player]}\non the table: nothing yet\nmoves so far: call, raise"
        assert env.drawn(state, player) == shown
    assert f"on the table: {cards[2]}" in env.drawn(state, None)


def test_every_game_has_a_board():
    assert BOARDS.keys() == GAMES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_all_moves_that_are_allowed_have_names_of_their_own(game):
    env = make(f"pgx:{game}")
    step, random = jax.jit(env.step), np.random.default_rng(0)
    state, _ = jax.jit(env.reset)(jax.random.key(1))
    over = False
    for _ in range(60):
        if over:
            break
        legal = np.flatnonzero(env.legal(state))
        names = env.move_names(state)
        found = [names[action] for action in legal]
        assert all(found)
        assert len(set(found)) == len(found)
        state, _, _, over, _ = step(state, int(random.choice(legal)), jax.random.key(0))


def test_pieces_of_chess_go_where_the_game_says():
    from pgx._src.gardner_chess_utils import TO_MAP

    ours = [[chess_target(cell * 49 + plane)[1] for plane in range(49)] for cell in range(25)]
    np.testing.assert_array_equal(np.asarray(TO_MAP), ours)
