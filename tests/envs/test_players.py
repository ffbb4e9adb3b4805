"""Players that need no learning: they see a win, prevent a loss, and a solver is never wrong."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tessera import TesseraError
from tessera.envs import make
from tessera.envs.base import Timestep
from tessera.envs.players import named_opponent
from tessera.envs.solvers import find_solver


def position(env, moves: list[int]):
    state, _ = env.reset(jax.random.key(0))
    for move in moves:
        state, *_ = env.step(state, move, jax.random.key(0))
    return state


def moves_of(name: str, env, states, seed: int = 0) -> np.ndarray:
    """What a player does in each of several positions."""
    player, nothing = named_opponent(name, env), jnp.zeros((), bool)

    def move(state, key):
        seen = Timestep(
            env.observe(state), jnp.zeros(()), nothing, nothing, None, legal=env.legal(state),
            player=env.player(state), state=state,
        )  # fmt: skip
        return player.move(player.memory(), seen, key)[0]

    keys = jax.random.split(jax.random.key(seed), jax.tree.leaves(states)[0].shape[0])
    return np.asarray(jax.jit(jax.vmap(move))(states, keys))


def stacked(states):
    return jax.tree.map(lambda *x: jnp.stack(x), *states)


def test_a_search_without_a_network_wins_where_it_can_and_prevents_a_loss():
    env = make("pgx:tic_tac_toe")
    wins = position(env, [0, 3, 8, 4])  # X has a1 and c3, O threatens at 5: X wins at none, so it must take 5
    own = position(env, [0, 3, 1, 4])  # X wins at 2, and O threatens at 5
    found = moves_of("mcts:64", env, stacked([wins, own] * 8))
    assert set(found[::2]) == {5}
    assert set(found[1::2]) == {2}


def test_a_search_is_an_option_of_an_environment():
    env = make("pgx:tic_tac_toe?opponent=mcts:8")
    assert (env.opponent, env.spec.players) == ("mcts:8", 1)
    state, _ = jax.jit(env.reset)(jax.random.key(0))
    action = int(np.flatnonzero(env.legal(state))[0])
    after, *_ = jax.jit(env.step)(state, action, jax.random.key(1))
    assert int((after.game._x.board >= 0).sum()) - int((state.game._x.board >= 0).sum()) == 2


def test_a_solver_knows_what_moves_are_worth_also_side_by_side():
    pytest.importorskip("bitbully")
    env = make("pgx:connect_four")
    over = position(env, [0, 1, 0, 1, 0, 1, 0])
    states = [position(env, []), position(env, [3] * 6), position(env, [0, 1, 0, 1, 0, 1]), over]
    scores = np.asarray(jax.jit(jax.vmap(find_solver("bitbully", env)))(stacked(states)))
    np.testing.assert_array_equal(scores[0], [-2, -1, 0, 1, 0, -1, -2])  # the first player wins in the middle alone
    np.testing.assert_array_equal(scores[1], [-1, 0, 1, -np.inf, 1, 0, -1])
    assert scores[2].argmax() == 0
    np.testing.assert_array_equal(scores[3], 0)
    assert moves_of("solver:bitbully", env, stacked(states))[[0, 2]].tolist() == [3, 0]


@pytest.mark.slow
def test_a_solver_never_gives_away_what_is_won_or_drawn():
    """From positions after random moves, against a player who looks one move ahead; in loops, side by side."""
    pytest.importorskip("bitbully")
    env, count = make("pgx:connect_four"), 200
    solver, other, nothing = named_opponent("solver:bitbully", env), named_opponent("greedy", env), jnp.zeros((), bool)

    def moved(state, player, key):
        seen = Timestep(
            env.observe(state), jnp.zeros(()), nothing, nothing, None, legal=env.legal(state),
            player=env.player(state), state=state,
        )  # fmt: skip
        return env.step(state, player.move((), seen, key)[0], key)

    def begun(key, moves):
        state, _ = env.reset(key)
        random = named_opponent("random", env)
        return jax.lax.fori_loop(0, moves, lambda k, s: moved(s, random, jax.random.fold_in(key, k))[0], state)

    def played(state, key):
        """What the solver earns if it moves first from here."""
        side = env.player(state)

        def turn(carry):
            state, _, key = carry
            key, now = jax.random.split(key)
            ours, theirs = (moved(state, player, now) for player in (solver, other))
            mine = env.player(state) == side
            after = jax.tree.map(lambda a, b: jnp.where(mine, a, b), ours, theirs)
            return after[0], after[2][side], key

        return jax.lax.while_loop(lambda c: ~c[0].terminated, turn, (state, jnp.zeros(()), key))[1]

    keys = jax.random.split(jax.random.key(0), count)
    states = jax.jit(jax.vmap(begun))(keys, jnp.arange(count) % 24)
    going = np.flatnonzero(~np.asarray(states.terminated))
    states = jax.tree.map(lambda x: x[going], states)
    worth = np.sign(np.asarray(jax.jit(jax.vmap(find_solver("bitbully", env)))(states)).max(-1))
    earned = np.asarray(jax.jit(jax.vmap(played))(states, keys[going]))
    assert (worth > 0).sum() > 50
    assert (worth <= 0).sum() > 20
    assert (earned >= worth).all()
    assert (earned[worth > 0] == 1).all()


@pytest.mark.parametrize(
    ("game", "name", "said"),
    [
        ("tic_tac_toe", "mcts:", "from 1 to 10,000, as in mcts:64"),
        ("tic_tac_toe", "mcts:0", "from 1 to 10,000"),
        ("tic_tac_toe", "mcts:99999999999", "from 1 to 10,000"),
        ("tic_tac_toe", "solver:bitbully", "solver:bitbully plays pgx:connect_four, and not pgx:tic_tac_toe"),
        ("connect_four", "solver:stockfish", "unknown solver 'stockfish'"),
        ("connect_four", "solver:", "unknown solver ''"),
        ("kuhn_poker", "mcts", "a player does not see all"),
        ("leduc_holdem", "greedy", "a player does not see all: choose random or the folder of a run"),
        ("tic_tac_toe", "gready", "did you mean 'greedy'"),
    ],
)
def test_what_cannot_play_is_refused(game, name, said):
    with pytest.raises(TesseraError, match=said):
        make(f"pgx:{game}?opponent={name}")
