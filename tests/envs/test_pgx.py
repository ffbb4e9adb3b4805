"""Games of pgx: two players who take turns."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tessera import TesseraError
from tessera.envs import make
from tessera.envs.pgx import GAMES
from tessera.envs.players import RandomOpponent
from tessera.envs.wrappers.opponent import AgainstOpponent

BOARDS = ["tic_tac_toe", "connect_four"]


def play(env, moves: int, seed: int):
    """Random legal moves: states, observations, actions, rewards, and whether each game was over."""

    def move(carry, key):
        state, observation = carry
        k = jax.random.split(key, 3)
        action = jax.random.categorical(k[0], jnp.where(env.legal(state), 0.0, -jnp.inf))
        after, seen, reward, terminated, truncated = env.step(state, action, k[1])
        over = terminated | truncated
        fresh = env.restart(after, k[2])
        carry = jax.tree.map(lambda a, b: jnp.where(over, a, b), fresh, (after, seen))
        return carry, (observation, env.legal(state), action, env.player(state), reward, over, seen)

    start = env.reset(jax.random.key(seed))
    return jax.jit(lambda c, k: jax.lax.scan(move, c, k)[1])(start, jax.random.split(jax.random.key(seed + 1), moves))


@pytest.mark.parametrize("game", [*BOARDS, "kuhn_poker", "leduc_holdem"])
def test_a_game_has_two_players_whose_rewards_come_to_nothing_and_ends_in_time(game):
    env = make(f"pgx:{game}")
    spec = env.spec
    assert (spec.players, spec.restricted, spec.reward_shape) == (2, True, (2,))
    assert spec.hidden == GAMES[game].hidden
    _, legal, action, player, reward, over, _ = map(np.asarray, play(env, 400, 0))
    assert np.take_along_axis(legal, action[:, None], 1).all()
    assert set(player) == {0, 1}
    np.testing.assert_allclose(reward.sum(-1), 0)
    assert (reward[~over] == 0).all()
    lengths = np.diff(np.flatnonzero(np.concatenate([[True], over])))
    assert lengths.max() <= spec.time_limit


@pytest.mark.parametrize("game", [*BOARDS, pytest.param("hex", marks=pytest.mark.slow),
                                  pytest.param("othello", marks=pytest.mark.slow),
                                  pytest.param("go_9x9", marks=pytest.mark.slow)])  # fmt: skip
def test_a_game_on_a_turned_board_is_the_same_game(game):
    env = make(f"pgx:{game}")
    step, reset = jax.jit(env.step), jax.jit(env.reset)
    symmetries = env.spec.symmetries
    assert len({s.cells for s in symmetries}) == len(symmetries)
    start = np.asarray(reset(jax.random.key(3))[1]).reshape(len(symmetries[0].cells), -1)
    # Othello begins with stones that a quarter turn would give to the other player
    kept = [s for s in symmetries if (start[list(s.cells)] == start).all()]
    assert len(kept) == (len(symmetries) if game != "othello" else 4)
    for s in kept:
        cells, inverse = np.asarray(s.cells), np.argsort(s.actions)
        state, seen = reset(jax.random.key(3))
        other, _ = reset(jax.random.key(3))
        random = np.random.default_rng(0)
        for _ in range(12):
            action = int(random.choice(np.nonzero(np.asarray(env.legal(state)))[0]))
            state, seen, reward, over, _ = step(state, action, jax.random.key(0))
            other, turned, same, _, _ = step(other, int(inverse[action]), jax.random.key(0))
            if over:
                break
            flat = np.asarray(seen).reshape(len(cells), -1)
            np.testing.assert_array_equal(np.asarray(turned).reshape(len(cells), -1), flat[cells])
            np.testing.assert_array_equal(np.asarray(env.legal(other)), np.asarray(env.legal(state))[list(s.actions)])
            np.testing.assert_array_equal(np.asarray(reward), np.asarray(same))


def test_cards_show_what_was_played_and_not_what_the_other_one_holds():
    env = make("pgx:kuhn_poker")
    seen = {}
    for seed in range(40):
        state, first = env.reset(jax.random.key(seed))
        cards = np.asarray(state.game._cards)
        own, other = cards[int(env.player(state))], cards[1 - int(env.player(state))]
        seen.setdefault((own, "first"), set()).add(tuple(np.asarray(first)))
        _, second, *_ = env.step(state, 1 if bool(env.legal(state)[1]) else 0, jax.random.key(0))
        seen.setdefault((other, "second"), set()).add(tuple(np.asarray(second)))
    assert len(seen) == 6
    assert all(len(each) == 1 for each in seen.values())
    assert len({next(iter(each)) for each in seen.values()}) == 6


def test_what_there_is_not_is_refused():
    with pytest.raises(TesseraError, match="unknown pgx game 'connect4': did you mean"):
        make("pgx:connect4")
    with pytest.raises(TesseraError, match="takes no options: leave out size"):
        make("pgx:tic_tac_toe?size=4")


def test_an_opponent_plays_the_other_side_and_sides_change():
    env = make("pgx:tic_tac_toe?opponent=random")
    assert env.spec.players == 1
    assert env.spec.reward_shape == ()
    observation, legal, action, _, reward, over, _ = map(
        np.asarray, [x if x is not None else np.zeros(1) for x in play_alone(env, 300, 0)]
    )
    assert np.take_along_axis(legal, action[:, None], 1).all()
    stones = observation.reshape(len(observation), -1, 2).sum(1)  # own and other
    assert set(stones[:, 1] - stones[:, 0]) == {0, 1}  # it began, or the other one did
    begins = np.concatenate([[True], over[:-1]])
    began = stones[begins, 1] == 0
    assert (began[1:] != began[:-1]).all()
    assert set(reward[over]) == {-1.0, 0.0, 1.0}


def play_alone(env, moves: int, seed: int):
    def move(carry, key):
        state, observation = carry
        k = jax.random.split(key, 3)
        action = jax.random.categorical(k[0], jnp.where(env.legal(state), 0.0, -jnp.inf))
        after, seen, reward, terminated, truncated = env.step(state, action, k[1])
        over = terminated | truncated
        carry = jax.tree.map(lambda a, b: jnp.where(over, a, b), env.restart(after, k[2]), (after, seen))
        return carry, (observation, env.legal(state), action, jnp.int32(0), reward, over, seen)

    start = env.reset(jax.random.key(seed))
    return jax.jit(lambda c, k: jax.lax.scan(move, c, k)[1])(start, jax.random.split(jax.random.key(seed + 1), moves))


def test_a_greedy_opponent_wins_where_it_can():
    env = make("pgx:tic_tac_toe")
    against = make("pgx:tic_tac_toe?opponent=greedy")
    state, _ = against.reset(jax.random.key(0))
    game, _ = env.reset(jax.random.key(0))
    for cell in (0, 3, 8, 4):  # the second player holds 3 and 4, and wins at 5
        game, *_ = env.step(game, cell, jax.random.key(0))
    match = state._replace(game=game, side=env.player(game))
    for key in range(5):
        _, _, reward, terminated, _ = against.step(match, 1, jax.random.key(key))
        assert (float(reward), bool(terminated)) == (-1.0, True)
    with pytest.raises(TesseraError, match="unknown opponent 'gready': did you mean 'greedy'"):
        make("pgx:tic_tac_toe?opponent=gready")
    with pytest.raises(TesseraError, match="no game of two players"):
        make("gymnax:CartPole-v1?opponent=random")


def test_openings_are_drawn_and_a_game_that_is_lost_before_the_first_move_counts():
    against = AgainstOpponent(make("pgx:tic_tac_toe"), RandomOpponent(), openings=4)
    state, seen = jax.jit(jax.vmap(against.reset))(jax.random.split(jax.random.key(0), 256))
    stones = np.asarray(seen).reshape(256, -1).sum(-1)
    assert set(stones) == {4, 5}  # and a move of the opponent, if it begins
    assert len({np.asarray(x).tobytes() for x in seen}) > 100
    lost = np.asarray(state.over)  # by that fifth stone
    assert 0 < lost.sum() < 40
    assert (stones[lost] == 5).all()
    actions = jnp.argmax(jax.vmap(against.legal)(state), -1)
    keys = jax.random.split(jax.random.key(1), 256)
    _, _, reward, terminated, _ = jax.device_get(jax.jit(jax.vmap(against.step))(state, actions, keys))
    assert (reward[lost] == -1).all()
    assert terminated[lost].all()
    assert not terminated[~lost].all()
