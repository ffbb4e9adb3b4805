"""AlphaZero: what it searches, what it learns from, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tessera import AlphaZero, TesseraError
from tessera.algorithms.contract import View
from tessera.algorithms.parts.finished_games import GamePosition, turned
from tessera.envs import make
from tessera.envs.base import Timestep
from tessera.planning.prepare import prepare_plan

SMALL = AlphaZero(unroll=4, simulations=16, draws=2, batch=32, capacity=512, channels=8, blocks=1)


@pytest.fixture(scope="module")
def bound():
    return SMALL.bound_to(make("pgx:tic_tac_toe"))


def seen(game, state):
    nothing = jnp.zeros((), bool)
    return Timestep(
        game.observe(state),
        0.0,
        nothing,
        nothing,
        None,
        legal=game.legal(state),
        player=game.player(state),
        state=state,
    )


def position(game, moves):
    state, _ = game.reset(jax.random.key(0))
    for move in moves:
        state, *_ = game.step(state, move, jax.random.key(0))
    return state


@pytest.mark.parametrize("search", ["gumbel", "puct"])
@pytest.mark.parametrize(
    ("moves", "best"),
    [
        ((0, 3, 1, 4), 2),  # who moves wins in the first row
        ((0, 3, 1, 4, 8), 5),  # and here in the second
        ((0, 3, 1), 2),  # else the other one wins there
        ((4, 0, 2), 6),
    ],
)
def test_a_search_finds_the_one_good_move_with_a_network_that_knows_nothing(bound, search, moves, best):
    algorithm = replace(bound, search=search, simulations=64)
    view = View(algorithm.init(jax.random.key(1)), (), (), None)
    state = position(algorithm.game, moves)
    greedy = jax.jit(lambda s, k: algorithm.greedy(view, algorithm.memory(jnp.int32(0)), seen(algorithm.game, s), k)[0])
    assert [int(greedy(state, jax.random.key(k))) for k in range(3)] == [best] * 3


def test_illegal_moves_are_never_chosen(bound):
    view = View(bound.init(jax.random.key(1)), (), (), None)
    act = jax.jit(lambda s, k: bound.act(view, bound.memory(jnp.int32(0)), seen(bound.game, s), k))
    state = position(bound.game, (0, 3, 1, 4, 8))
    legal = np.asarray(bound.game.legal(state))
    for k in range(30):
        action, _, policy = act(state, jax.random.key(k))
        assert legal[int(action)]
        assert np.asarray(policy)[~legal].sum() == 0
        assert np.asarray(policy).sum() == pytest.approx(1.0, abs=1e-5)


def test_a_game_is_searched_alike_beside_any_others(bound):
    view = View(bound.init(jax.random.key(1)), (), (), None)
    act = jax.jit(jax.vmap(lambda s, k: bound.act(view, bound.memory(jnp.int32(0)), seen(bound.game, s), k)[0]))
    states, _ = jax.vmap(bound.game.reset)(jax.random.split(jax.random.key(0), 32))
    keys = jax.random.split(jax.random.key(1), 32)
    half = jax.tree.map(lambda x: x[16:], states)
    np.testing.assert_array_equal(act(states, keys)[16:], act(half, keys[16:]))


def test_without_the_state_the_network_moves_alone(bound):
    view = View(bound.init(jax.random.key(1)), (), (), None)
    state = position(bound.game, (0, 3, 1))
    blind = seen(bound.game, state)._replace(state=None)
    action, _ = bound.greedy(view, bound.memory(jnp.int32(0)), blind, jax.random.key(0))
    assert bool(bound.game.legal(state)[int(action)])


def test_the_loss_by_hand(bound):
    """Two positions on which the network says nothing: uniform moves and a value of 0."""
    params = jax.tree.map(jnp.zeros_like, bound.init(jax.random.key(1)))
    legal = jnp.ones((2, 9), bool).at[0, 4:].set(False)
    policy = jnp.zeros((2, 9)).at[0, 0].set(1.0).at[1].set(1 / 9)
    rows = GamePosition(jnp.zeros((2, 3, 3, 2), bool), policy, legal, jnp.asarray([1.0, -0.5]))
    _, feedback = bound.gradient(View(params, (), (), None), rows, (), jax.random.split(jax.random.key(0), 2))
    found = {name: float(x) for name, x in feedback.metrics.items()}
    assert found["policy_loss"] == pytest.approx((np.log(4) + np.log(9)) / 2)
    assert found["value_loss"] == pytest.approx((1.0 + 0.25) / 2)
    assert found["search_entropy"] == pytest.approx(np.log(9) / 2)
    assert found["policy_error"] == pytest.approx(np.log(4) / 2)


def test_a_position_is_turned_with_its_moves(bound):
    board = np.zeros((3, 3, 2), bool)
    board[0, 2, 0] = True
    policy = np.zeros(9, np.float32)
    policy[2] = 1.0
    legal = ~board.any(-1).reshape(-1)
    row = GamePosition(jnp.asarray(board), jnp.asarray(policy), jnp.asarray(legal), jnp.float32(1))
    corners = set()
    for k in range(40):
        found = turned(row, bound.world.symmetries, jax.random.key(k))
        (cell,) = np.flatnonzero(np.asarray(found.observation)[..., 0].reshape(-1))
        assert int(found.policy.argmax()) == cell
        assert not bool(found.legal[cell])
        corners.add(int(cell))
    assert corners == {0, 2, 6, 8}


@pytest.mark.parametrize(
    ("algorithm", "env", "said"),
    [
        (SMALL, "pgx:leduc_holdem", "a player does not see all"),
        (SMALL, "CartPole-v1", "must be compiled, and gymnasium:CartPole-v1 is not"),
        (SMALL, "gymnax:CartPole-v1", "games of two players who take turns"),
        (SMALL, "pgx:tic_tac_toe?opponent=random", "games of two players who take turns"),
        (replace(SMALL, search="mcts"), "pgx:tic_tac_toe", "unknown search 'mcts'"),
        (replace(SMALL, capacity=8), "pgx:tic_tac_toe", "--capacity 8 is below --batch 32"),
    ],
)
def test_what_it_cannot_do_is_refused(algorithm, env, said):
    with pytest.raises(TesseraError, match=said):
        prepare_plan(algorithm, env, None)
