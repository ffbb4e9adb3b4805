"""Opponents in games on the host: who plays the other side, whose moves are part of a step."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tessera import TesseraError, envs
from tessera.envs import HostEnvironment, Timestep

pytest.importorskip("pettingzoo")
from scripted_games import Pile
from test_pettingzoo_turns import Uncopied, drawn

from tessera.envs.wrappers.host_opponent import HostMatch, host_match

TIC_TAC_TOE = "pettingzoo:classic.tictactoe_v3"
FOUR = "pettingzoo:classic.connect_four_v3"


def played(env: HostEnvironment, ids: Any, moves: int, seed: int = 0) -> list[Timestep]:
    """Random legal moves, drawn for each game by itself."""
    ids = np.asarray(ids)
    vector, random = env.open(ids, seed), [np.random.default_rng(int(index)) for index in ids.flat]
    seen = [vector.reset()]
    for _ in range(moves):
        legal = seen[-1].legal.reshape(ids.size, -1)
        actions = [drawn(row, own) for row, own in zip(legal, random, strict=True)]
        seen.append(vector.step(np.array(actions, np.int32).reshape(ids.shape)))
    vector.close()
    return seen


def column(seen: list[Timestep], field: str) -> np.ndarray:
    return np.stack([getattr(t, field) for t in seen])


def test_sides_change_from_game_to_game_and_the_result_is_the_own():
    env = envs.make(f"{TIC_TAC_TOE}?opponent=random")
    assert isinstance(env, HostMatch)
    assert (env.spec.players, env.spec.reward_shape, env.spec.restricted) == (1, (), True)
    assert envs.words_of(env) == ("the other side played by random",)
    seen = played(env, [[0, 1], [2, 3]], 120)
    over, reward = column(seen, "terminated"), column(seen, "reward")
    assert set(reward[over]) == {-1.0, 0.0, 1.0}
    assert not reward[~over].any()
    stones = column(seen, "observation").reshape(*over.shape, 9, 2).sum(-2)  # own and other
    assert set((stones[..., 1] - stones[..., 0]).flat) == {0, 1}
    began = [stones[:, g, n, 1][over[:, g, n]] == 0 for g, n in np.ndindex(2, 2)]
    assert all((each[1:] != each[:-1]).all() for each in began)
    final = column(seen, "final").reshape(*over.shape, 9, 2).sum((-1, -2))
    assert (final[over] >= 5).all()
    np.testing.assert_array_equal(column(seen, "final")[~over], column(seen, "observation")[~over])


@pytest.mark.parametrize("name", [FOUR, "pettingzoo:classic.leduc_holdem_v4"])
def test_a_match_does_not_depend_on_which_others_are_open(name):
    if "leduc" in name:
        pytest.importorskip("rlcard")
    env = envs.make(f"{name}?opponent=random")
    both, one = played(env, [[0, 1], [2, 3]], 40), played(pickle.loads(pickle.dumps(env)), [[2, 3]], 40)
    for field in ("observation", "reward", "terminated", "final", "legal", "final_legal"):
        np.testing.assert_array_equal(column(both, field)[:, 1:], column(one, field))
    assert (column(played(env, [[0, 1]], 40, seed=1), "observation") != column(both, "observation")[:, :1]).any()


def test_a_greedy_opponent_wins_where_it_can():
    vector = envs.make(f"{TIC_TAC_TOE}?opponent=greedy").open(np.arange(64).reshape(1, 64), 0)
    now, random, losses = vector.reset(), np.random.default_rng(0), 0
    for _ in range(12):
        moves = drawn(now.legal, random)
        before, now = now, vector.step(moves)
        own, other = np.moveaxis(before.observation[0].reshape(64, 9, 2), -1, 0)
        own = own.copy()
        own[np.arange(64), moves[0]] = 1
        could = np.array([not won(a) and can_win(b, a) for a, b in zip(own, other, strict=True)])
        assert (now.reward[0][could] == -1).all()
        losses += could.sum()
    assert losses > 30


LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


def won(stones: np.ndarray) -> bool:
    return any(all(stones[c] for c in line) for line in LINES)


def can_win(mine: np.ndarray, other: np.ndarray) -> bool:
    return any(won(mine + np.eye(9)[cell]) for cell in range(9) if not mine[cell] and not other[cell])


class Patient:
    """Takes some sticks with its first move of a game, and one with each later."""

    name = "patient"

    def __init__(self, sticks: int) -> None:
        self.sticks = sticks

    def memory(self) -> Any:
        return jnp.int32(0)

    def move(self, memory: Any, timestep: Timestep, key: Any) -> tuple[Any, Any]:
        return jnp.where(memory == 0, self.sticks - 1, 0).astype(jnp.int32), memory + 1


def test_an_opponent_remembers_its_moves_until_the_game_is_over():
    vector = HostMatch(envs.make(Pile), Patient(2)).open(np.array([[0]]), 0)
    seen = [vector.reset(), *(vector.step(np.array([[0]], np.int32)) for _ in range(12))]
    left, reward = (column(seen, field).reshape(13, -1)[:, 0].tolist() for field in ("observation", "reward"))
    own, other = [7.0, 4.0, 2.0], [5.0, 3.0, 1.0]  # who begins; the other one takes two, one and one
    begins = own + other if left[0] == 7 else other + own
    assert left == [*begins, *begins, begins[0]]
    lost = [0.0, 0.0, -1.0 if left[0] == 7 else 1.0]
    won_then = [0.0, 0.0, -lost[2]]
    assert reward == [0.0, *lost, *won_then, *lost, *won_then]


class Instant(Pile):
    """A pile that may be won with one move."""

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        super().reset(seed, options)
        self._left = 3


def test_a_game_that_is_over_before_the_first_own_move_counts():
    vector = HostMatch(envs.make(Instant), Patient(3)).open(np.arange(4).reshape(1, 4), 0)
    now = vector.reset()
    lost = now.observation[0, :, 0] == 0  # the opponent began, and took all
    assert now.legal[0][lost].all()
    results: list[Any] = []
    for _ in range(6):
        begun = now.observation[0, :, 0]
        now = vector.step(np.full((1, 4), 2, np.int32))  # all three, if there is a game
        assert now.terminated.all()
        np.testing.assert_array_equal(now.reward[0], np.where(begun == 0, -1, 1))
        results.append(now.reward[0])
    assert (np.array(results)[1:] == -np.array(results)[:-1]).all()  # sides change


def test_openings_are_drawn_and_never_end_a_game():
    seen = played(host_match(envs.make(TIC_TAC_TOE), "random", openings=4), [list(range(64))], 0)[0]
    stones = seen.observation.reshape(64, -1).sum(-1)
    assert set(stones) <= {4, 5}
    assert len({x.tobytes() for x in seen.observation[0]}) > 40
    with pytest.raises(TesseraError, match="are over before 8 moves: draw fewer"):
        played(host_match(envs.make(Pile), "random", openings=8), [[0]], 0)


def test_wrappers_go_around_a_match_and_a_limit_cuts_it():
    env = envs.make(f"{FOUR}?opponent=random&time_limit=2")
    seen = played(env, [[0, 1]], 40)
    cut, over = column(seen, "truncated"), column(seen, "terminated")
    assert cut.any()
    assert not (cut & over).any()
    stones = column(seen, "final").reshape(*cut.shape, -1).sum(-1)
    assert set(stones[cut]) <= {4, 5}


def test_opponents_that_cannot_play_are_refused_with_a_reason():

    for name, words in (
        (f"{FOUR}?opponent=gready", "unknown opponent 'gready': did you mean 'greedy'"),
        ("CartPole-v1?opponent=random", "no game of two players"),
    ):
        with pytest.raises(TesseraError, match=words):
            envs.make(name)
    with pytest.raises(TesseraError, match=r"tries moves in copies of a game, and .* cannot be copied: choose random"):
        envs.make(Uncopied, opponent="greedy")
    assert envs.make(functools.partial(Pile), opponent="greedy").spec.players == 1
    with pytest.raises(TesseraError, match=r"solver:x needs a compiled game, and .* is not: choose random, greedy"):
        host_match(envs.make(TIC_TAC_TOE), "solver:x")
    with pytest.raises(TesseraError, match=r"greedy tries what moves would earn, and in .* a player does not see all"):
        host_match(envs.make("pettingzoo:classic.leduc_holdem_v4"), "greedy")
