"""Games of PettingZoo in which two players take turns."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tessera import TesseraError, check_env, envs
from tessera.envs import Discrete, HostEnvironment, Spec, Timestep

pytest.importorskip("pettingzoo")
from scripted_games import Pile

CLASSICS = {
    "tictactoe_v3": Spec((3, 3, 2), "float32", Discrete(9), time_limit=9, restricted=True, players=2),
    "connect_four_v3": Spec((6, 7, 2), "float32", Discrete(7), time_limit=42, restricted=True, players=2),
    "go_v5?board_size=5": Spec((5, 5, 17), "float32", Discrete(26), restricted=True, players=2),
    "chess_v6": Spec((8, 8, 111), "float32", Discrete(4672), restricted=True, players=2),
    "leduc_holdem_v4": Spec((36,), "float32", Discrete(4), restricted=True, players=2, hidden=True),
    "texas_holdem_v4": Spec((72,), "float32", Discrete(4), restricted=True, players=2, hidden=True),
    "texas_holdem_no_limit_v6": Spec((54,), "float32", Discrete(5), restricted=True, players=2, hidden=True),
}
NEEDS = {
    "chess_v6": "chess",
    **dict.fromkeys(("leduc_holdem_v4", "texas_holdem_v4", "texas_holdem_no_limit_v6"), "rlcard"),
}
SAME = {"pgx:connect_four": "pettingzoo:classic.connect_four_v3", "pgx:tic_tac_toe": "pettingzoo:classic.tictactoe_v3"}


def classic(name: str) -> HostEnvironment:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    made = envs.make(f"pettingzoo:classic.{name}")
    assert isinstance(made, HostEnvironment)
    return made


def pile(**options: Any) -> HostEnvironment:
    made = envs.make(functools.partial(Pile, **options))
    assert isinstance(made, HostEnvironment)
    return made


def drawn(legal: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return np.where(legal, random.random(legal.shape), -1.0).argmax(-1).astype(np.int32)


def play(env: HostEnvironment, ids: Any, moves: int, seed: int = 0) -> list[Timestep]:
    """Legal moves that depend on the game's index and the step alone."""
    ids = np.asarray(ids)
    vector = env.open(ids, seed)
    seen = [vector.reset()]
    for t in range(moves):
        rank = (ids[..., None] * 7 + t * 3 + np.arange(env.spec.alternatives)) % 11
        seen.append(vector.step(np.where(seen[-1].legal, rank, -1).argmax(-1).astype(np.int32)))
    vector.close()
    return seen


def moves_in(env: HostEnvironment, moves: list[int]) -> list[Timestep]:
    """One game, with these moves."""
    vector = env.open(np.array([[0]]), 0)
    return [vector.reset(), *(vector.step(np.array([[move]], np.int32)) for move in moves)]


@pytest.mark.parametrize("name", CLASSICS)
def test_a_classic_has_two_players_whose_rewards_come_to_nothing(name):
    env, random = classic(name), np.random.default_rng(0)
    assert env.spec == CLASSICS[name]
    vector = env.open(np.arange(4).reshape(2, 2), 0)
    now, players, ends = vector.reset(), set(), 0
    for _ in range(60):
        assert now.legal.any(-1).all()
        players |= set(now.player.flat)
        now = vector.step(drawn(now.legal, random))
        ended = now.terminated | now.truncated
        ends += ended.sum()
        np.testing.assert_array_equal(now.reward.sum(-1), 0)
        assert not now.reward[~ended].any()
        assert now.final_legal[ended].all()  # nothing follows, so nothing is forbidden
        np.testing.assert_array_equal(now.final_player[~ended], now.player[~ended])
    assert players == {0, 1}
    assert ends or name in ("chess_v6", "go_v5?board_size=5")
    vector.close()


def test_a_game_of_tic_tac_toe_gives_the_golden_trace():
    trace = moves_in(classic("tictactoe_v3"), [0, 3, 1, 4, 2, 8])
    assert [int(t.player[0, 0]) for t in trace] == [0, 1, 0, 1, 0, 0, 1]  # a new game begins after the fifth move
    assert [bool(t.terminated[0, 0]) for t in trace] == [False] * 5 + [True, False]
    np.testing.assert_array_equal([t.reward[0, 0] for t in trace], [[0, 0]] * 5 + [[1, -1], [0, 0]])
    assert trace[3].legal[0, 0].tolist() == [False, False, True, False] + [True] * 5
    own, other = trace[4].observation[0, 0].reshape(9, 2).T
    assert (np.flatnonzero(own).tolist(), np.flatnonzero(other).tolist()) == ([0, 1], [3, 4])
    end = trace[5]
    own, other = end.final[0, 0].reshape(9, 2).T  # as the other player sees it, whose turn it would be
    assert (np.flatnonzero(own).tolist(), np.flatnonzero(other).tolist()) == ([3, 4], [0, 1, 2])
    assert int(end.final_player[0, 0]) == 1
    assert not end.observation.any()
    assert end.legal.all()
    assert (end.reward.dtype, end.player.dtype, end.legal.dtype) == (np.float32, np.int32, bool)


@pytest.mark.parametrize("theirs", SAME)
def test_pgx_and_pettingzoo_agree_move_by_move_over_1000_games(theirs):
    games, random = 1000, np.random.default_rng(5)
    compiled, host = envs.make(theirs), classic(SAME[theirs].partition(".")[2])
    vector = host.open(np.arange(games).reshape(1, games), 0)
    state, seen = jax.jit(jax.vmap(compiled.reset))(jax.random.split(jax.random.key(0), games))
    step = jax.jit(jax.vmap(compiled.step))
    look = jax.jit(jax.vmap(lambda s: (compiled.legal(s), compiled.player(s))))
    first = np.asarray(look(state)[1])  # pgx draws who begins, and there it is always the first
    now, going, played = vector.reset(), np.ones(games, bool), 0
    for _ in range(compiled.spec.time_limit):
        legal, player = map(np.asarray, look(state))
        np.testing.assert_array_equal(now.legal[0][going], legal[going])
        np.testing.assert_array_equal(now.player[0][going], (player != first)[going])
        np.testing.assert_array_equal(now.observation[0][going], np.asarray(seen, np.float32)[going])
        moves = drawn(legal, random)
        state, seen, reward, over, _ = step(state, jnp.asarray(moves), jax.random.split(jax.random.key(1), games))
        now = vector.step_some(moves[None], going[None])
        ended, reward = np.asarray(over) & going, np.asarray(reward)
        by_order = np.where((first == 0)[:, None], reward, reward[:, ::-1])
        np.testing.assert_array_equal(now.reward[0][going], by_order[going])
        np.testing.assert_array_equal(now.terminated[0][going], ended[going])
        np.testing.assert_array_equal(now.final[0][ended], np.asarray(seen, np.float32)[ended])
        assert not now.truncated.any()
        played += going.sum()
        going &= ~ended
    assert not going.any()  # all 1,000 came to their end
    assert played > 7 * games
    vector.close()


def test_an_illegal_move_loses_the_game_as_in_pgx():
    trace = moves_in(classic("tictactoe_v3"), [4, 4])
    np.testing.assert_array_equal(trace[2].reward[0, 0], [1, -1])
    assert trace[2].terminated.all()
    assert trace[2].legal.all()  # the next game
    compiled = envs.make("pgx:tic_tac_toe")
    state, _ = compiled.reset(jax.random.key(0))
    state, *_ = compiled.step(state, 4, jax.random.key(0))
    mover = int(compiled.player(state))
    _, _, reward, over, _ = compiled.step(state, 4, jax.random.key(0))
    assert (float(reward[mover]), float(reward[1 - mover]), bool(over)) == (-1.0, 1.0, True)


@pytest.mark.parametrize("masks", ["observed", "info"])
def test_masks_may_be_observed_or_told_and_moves_begin_where_the_game_says(masks):
    env = pile(masks=masks)
    assert env.spec == Spec((2,), "float32", Discrete(3), restricted=True, players=2)
    trace = moves_in(env, [2, 1, 0, 0])  # three, two, one and the last stick
    np.testing.assert_array_equal([t.observation[0, 0] for t in trace], [[7, 0], [4, 1], [2, 0], [1, 1], [7, 0]])
    np.testing.assert_array_equal([t.final[0, 0] for t in trace[1:]], [[4, 1], [2, 0], [1, 1], [0, 0]])
    np.testing.assert_array_equal(trace[2].legal[0, 0], [True, True, False])
    np.testing.assert_array_equal(trace[4].reward[0, 0], [-1, 1])


def test_without_masks_every_move_is_legal():
    assert moves_in(pile(masks="none"), [0])[1].legal.all()


def test_a_player_may_move_again_and_one_who_left_is_passed_over():
    assert [int(t.player[0, 0]) for t in moves_in(pile(again=True), [2, 0, 0])] == [0, 0, 1, 0]
    trace = moves_in(pile(leaves=True), [0, 0, 0, 2])
    assert [int(t.player[0, 0]) for t in trace[:4]] == [0, 1, 1, 1]
    assert [bool(t.terminated[0, 0]) for t in trace] == [False] * 5


def test_a_game_that_is_cut_is_truncated_and_its_last_position_is_whole():
    end = moves_in(pile(cut=3), [2, 0, 0])[3]
    assert (bool(end.terminated[0, 0]), bool(end.truncated[0, 0])) == (False, True)
    np.testing.assert_array_equal(end.final[0, 0], [2, 1])
    assert (end.final_legal[0, 0].tolist(), int(end.final_player[0, 0])) == ([True, True, False], 1)
    limited = envs.make(functools.partial(Pile), time_limit=2)
    end = moves_in(limited, [2, 0])[2]
    assert (bool(end.terminated[0, 0]), bool(end.truncated[0, 0])) == (False, True)
    assert (int(end.final_player[0, 0]), int(end.player[0, 0])) == (0, 0)
    end = moves_in(envs.make(functools.partial(Pile), time_limit=1), [2])[1]
    assert (int(end.final_player[0, 0]), int(end.player[0, 0])) == (1, 0)
    np.testing.assert_array_equal(end.final[0, 0], [4, 1])


@pytest.mark.parametrize("name", ["connect_four_v3", "leduc_holdem_v4"])
def test_a_game_does_not_depend_on_which_others_are_open(name):
    env = classic(name)
    both, one = play(env, [[0, 1], [2, 3]], 40), play(env, [[2, 3]], 40)
    for a, b in zip(both, one, strict=True):
        for x, y in zip(a, b, strict=True):
            assert (x is None) == (y is None)
            if x is not None:
                np.testing.assert_array_equal(x[1:], y)


def test_later_resets_deal_other_cards_and_another_process_makes_the_same_game():
    env = pickle.loads(pickle.dumps(classic("leduc_holdem_v4")))
    vector = env.open(np.arange(16).reshape(1, 16), 3)
    first, second = vector.reset().observation, vector.reset().observation
    assert (first != second).any()
    np.testing.assert_array_equal(env.open(np.arange(16).reshape(1, 16), 3).reset().observation, first)
    assert (env.open(np.arange(16).reshape(1, 16), 4).reset().observation != first).any()


@pytest.mark.parametrize("name", CLASSICS)
def test_moves_are_tried_in_copies_that_change_nothing(name):
    env = classic(name)
    assert env.tries_moves
    vector, other = (env.open(np.array([[0, 1]]), 0) for _ in range(2))
    now, same, random = vector.reset(), other.reset(), np.random.default_rng(1)
    for _ in range(8 if name.startswith(("chess", "go")) else 30):
        moves = drawn(now.legal, random)
        earned = vector.tried(np.ones((1, 2), bool))
        before = now.player
        now, same = vector.step(moves), other.step(moves)
        for x, y in zip(now, same, strict=True):
            np.testing.assert_array_equal(x, y)
        own = np.take_along_axis(now.reward, before[..., None], -1)[..., 0]
        np.testing.assert_array_equal(np.take_along_axis(earned, moves[..., None], -1)[..., 0], own)


class Uncopied(Pile):
    """Holds what Python cannot copy."""

    def __init__(self) -> None:
        super().__init__()
        self.held = (letter for letter in "a generator")


def test_a_game_that_cannot_be_copied_says_so():
    assert not envs.make(Uncopied).tries_moves


def test_what_does_not_fit_is_refused_with_a_reason():
    for env, words in (
        (functools.partial(Pile, players=3, widths=(2, 2)), "has 3 players who take turns, and games here are for two"),
        (functools.partial(Pile, masks="none", widths=(2, 3)), "one network plays both sides"),
        ("pettingzoo:classic.hanabi_v5", "its players win and lose together"),
        ("pettingzoo:classic.connect_four_v9", "did you mean 'classic.connect_four_v3'"),
    ):
        with pytest.raises(TesseraError, match=words):
            envs.make(env)
    assert "one player's gain must be the other's loss" in str(check_env(functools.partial(Pile, loser=0.0)))
    vector = pile(loser=0.0).open(np.array([[0]]), 0)
    vector.reset()
    for sticks in (2, 2):
        vector.step(np.array([[sticks]], np.int32))
    with pytest.raises(TesseraError, match="a move earned 1 for p0 and 0 for p1"):
        vector.step(np.array([[0]], np.int32))


@pytest.mark.parametrize("name", ["tictactoe_v3", "connect_four_v3", "leduc_holdem_v4"])
def test_a_check_finds_nothing_wrong(name):
    classic(name)
    report = check_env(f"pettingzoo:classic.{name}", steps=120)
    assert not report.findings
    assert report.episodes > 1
    assert "2 players who take turns" in report.spaces


class Unsteady(Pile):
    """Ignores its seed."""

    draws = iter(range(1000))

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        super().reset(seed, options)
        self._left = 4 + next(self.draws) % 3


class Nobody(Pile):
    """Says that somebody moves who does not play."""

    def step(self, action: Any) -> None:
        super().step(action)
        self.agent_selection = "p7"


class Worthless(Pile):
    """Rewards that are no numbers."""

    def step(self, action: Any) -> None:
        super().step(action)
        self.rewards = dict.fromkeys(self.agents, float("nan"))


@pytest.mark.parametrize(
    ("game", "words"),
    [(Unsteady, "with the same seed lead to different starts"), (Nobody, "none of possible_agents"),
     (Worthless, "the reward nan")],
)  # fmt: skip
def test_a_check_says_what_is_wrong(game, words):
    assert words in str(check_env(game, steps=30))


def test_numbers_of_a_game_are_told():
    vector = pile().open(np.array([[0]]), 0)
    vector.reset()
    vector.step(np.array([[2]], np.int32))
    total, count = vector.take_info()["left"]
    assert total / count == 4
