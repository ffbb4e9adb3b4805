"""Illegal moves are impossible: in play, in training and in search, in compiled games and in games on the host."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera import DQN, PPO, AlphaZero, policies
from tessera.algorithms.contract import View
from tessera.engines.serial import SerialEngine
from tessera.envs import DeviceEnvironment, Timestep, make
from tessera.envs.players import RandomOpponent
from tessera.planning.prepare import prepare_plan
from tessera.program.initial import initial_state
from tessera.program.training_program import published

GAMES = (pytest.param("pgx:connect_four", marks=pytest.mark.slow), "pgx:tic_tac_toe")
ON_THE_HOST = "pettingzoo:classic.connect_four_v3"
POSITIONS = 1024
LEARNERS: dict[str, Any] = {
    "ppo": PPO(unroll=8, epochs=1, minibatches=1, widths=(8,)),
    "dqn": DQN(unroll=8, draws=1, batch=32, capacity=512, warmup=1, widths=(8,)),
}


class Watch(NamedTuple):
    """A game, and how many moves were made in it and in those before, of which so many were illegal."""

    game: Any
    moves: Any
    illegal: Any


class Watched(DeviceEnvironment):
    """Counts illegal moves."""

    def __init__(self, env: Any) -> None:
        self.env, self.name, self.spec = env, f"watched {env.name}", env.spec

    def reset(self, key: Any) -> tuple[Any, Any]:
        game, seen = self.env.reset(key)
        return Watch(game, jnp.int32(0), jnp.int32(0)), seen

    def restart(self, state: Any, key: Any) -> tuple[Any, Any]:
        game, seen = self.env.restart(state.game, key)
        return state._replace(game=game), seen

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, Any, Any, Any, Any]:
        illegal = state.illegal + ~self.env.legal(state.game)[action]
        game, *rest = self.env.step(state.game, action, key)
        return Watch(game, state.moves + 1, illegal), *rest

    def legal(self, state: Any) -> Any:
        return self.env.legal(state.game)

    def player(self, state: Any) -> Any:
        return self.env.player(state.game)


@functools.cache
def watched(name: str) -> Watched:
    return Watched(make(name))


@functools.cache
def positions(name: str) -> tuple[Any, Any]:
    """States and observations in the middle of random games, of any length, none of which is over."""
    env = watched(name)

    def one(key: Any) -> tuple[Any, Any]:
        begin, count, key = jax.random.split(key, 3)
        longest = jax.random.randint(count, (), 0, env.spec.time_limit)

        def move(k: Any, at: tuple[Any, Any]) -> tuple[Any, Any]:
            draw, step = jax.random.split(jax.random.fold_in(key, k))
            action, _ = RandomOpponent().move((), seen_at(env, *at), draw)
            state, seen, _, over, _ = env.step(at[0], action, step)
            stays = over | (k >= longest)
            return jax.tree.map(lambda old, new: jnp.where(stays, old, new), at, (state, seen))

        return jax.lax.fori_loop(0, env.spec.time_limit, move, env.reset(begin))

    return jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(7), POSITIONS))


def seen_at(env: Any, state: Any, observation: Any, reads_state: bool = False) -> Timestep:
    no = jnp.zeros((), bool)
    return Timestep(
        observation, jnp.zeros(2), no, no, None, legal=env.legal(state), player=env.player(state),
        state=state if reads_state else None,
    )  # fmt: skip


@functools.cache
def acting_in(name: str, learner: str) -> Any:
    """(seed, scale of params) -> the actions of exploring and of greedy acting in all positions."""
    algorithm = LEARNERS[learner].bound_to(watched(name))
    state, seen = positions(name)

    @jax.jit
    def act(seed: Any, scale: Any) -> tuple[Any, Any]:
        key = jax.random.key(seed)
        learned = initial_state(algorithm, key, 1)
        view = published(learned._replace(params=jax.tree.map(lambda x: x * scale, learned.params)))

        def one(state: Any, observation: Any, key: Any) -> tuple[Any, Any]:
            timestep, memory = seen_at(watched(name), state, observation), algorithm.memory(jnp.int32(0))
            return algorithm.act(view, memory, timestep, key)[0], algorithm.greedy(view, memory, timestep, key)[0]

        return jax.vmap(one)(state, seen, jax.random.split(key, POSITIONS))

    return act


def all_legal(name: str, actions: Any) -> bool:
    legal = np.asarray(jax.vmap(watched(name).legal)(positions(name)[0]))
    return bool(np.take_along_axis(legal, np.asarray(actions)[:, None], 1).all())


@pytest.mark.parametrize("name", GAMES)
def test_positions_are_of_all_kinds(name):
    legal = np.asarray(jax.vmap(watched(name).legal)(positions(name)[0])).sum(-1)
    assert len(set(legal)) >= 5
    assert legal.min() == 1 or name == "pgx:connect_four"


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("name", GAMES)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31 - 1), scale=st.sampled_from([0.0, 1.0, 100.0, 1e6, -1e6]))
def test_learners_explore_and_play_among_legal_moves_whatever_their_params(name, learner, seed, scale):
    explored, greedy = acting_in(name, learner)(seed, scale)
    assert all_legal(name, explored)
    assert all_legal(name, greedy)


@pytest.mark.parametrize("name", GAMES)
def test_a_random_opponent_plays_legal_moves(name):
    state, seen = positions(name)
    timestep = jax.vmap(functools.partial(seen_at, watched(name)))(state, seen)
    keys = jax.random.split(jax.random.key(3), POSITIONS)
    assert all_legal(name, jax.vmap(lambda t, k: RandomOpponent().move((), t, k)[0])(timestep, keys))


@pytest.mark.parametrize("learner", [pytest.param("ppo", marks=pytest.mark.slow), "dqn"])
def test_training_in_a_compiled_game_makes_no_illegal_move(learner):
    bound, env, plan = prepare_plan(
        LEARNERS[learner], watched("pgx:tic_tac_toe"), policies.parse("fused:devices=1"), envs=32, groups=2
    )
    engine = SerialEngine(plan, bound, env, seed=1, horizon=20)
    engine.start()
    engine.advance(20)
    (watch,) = [replica.slots["env_state"] for replica in engine.replicas]
    assert int(watch.moves.sum()) >= 20 * 8 * 32
    assert int(watch.illegal.sum()) == 0
    engine.close()


@pytest.mark.parametrize(
    "policy", ["fused:devices=1", pytest.param("single_learner_fine:actors=2", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("learner", ["ppo", pytest.param("dqn", marks=pytest.mark.slow)])
def test_training_in_a_game_on_the_host_makes_no_illegal_move(learner, policy, monkeypatch):
    pytest.importorskip("pettingzoo")
    from tessera.envs.pettingzoo_turns import TurnsVector

    play, moves = TurnsVector._play, []

    def checked(self: Any, actions: np.ndarray, rows: Any) -> Timestep:
        legal = np.stack([at.legal for at in self._at])
        moves.append(np.take_along_axis(legal, actions.reshape(-1, 1), 1)[list(rows)])
        return play(self, actions, rows)

    monkeypatch.setattr(TurnsVector, "_play", checked)
    bound, env, plan = prepare_plan(LEARNERS[learner], ON_THE_HOST, policies.parse(policy), envs=8, groups=2)
    engine = SerialEngine(plan, bound, env, seed=1, horizon=20)
    engine.start()
    engine.advance(20)
    engine.close()
    assert sum(map(len, moves)) >= 20 * 8 * 8
    assert all(each.all() for each in moves)


@pytest.mark.parametrize("search", [pytest.param("gumbel", marks=pytest.mark.slow), "puct"])
@pytest.mark.parametrize("name", GAMES)
def test_a_search_plays_and_visits_legal_moves_alone(name, search):
    mctx = pytest.importorskip("mctx")
    called = "gumbel_muzero_policy" if search == "gumbel" else "muzero_policy"
    original, env = getattr(mctx, called), watched(name)
    algorithm = AlphaZero(search=search, simulations=24, channels=4, blocks=1).bound_to(env)
    algorithm = dataclasses.replace(algorithm, game=env)
    params = algorithm.init(jax.random.key(0))
    count = 256
    first = np.argsort(np.asarray(jax.vmap(env.legal)(positions(name)[0])).sum(-1), kind="stable")[: count // 2]
    chosen = np.concatenate([first, np.arange(count // 2)])  # those with the fewest legal moves, and any
    states, observations = jax.tree.map(lambda x: x[chosen], positions(name))

    def one(state: Any, observation: Any, key: Any, scale: Any) -> Any:
        found: list[Any] = []
        timestep = seen_at(env, state._replace(illegal=jnp.int32(0)), observation, reads_state=True)
        view = View(jax.tree.map(lambda x: x * scale, params), (), (), None)
        memory = algorithm.memory(jnp.int32(0))
        with mock.patch.object(mctx, called, lambda *a, **k: found.append(original(*a, **k)) or found[-1]):
            action, _, policy = algorithm.act(view, memory, timestep, key)
            greedy, _ = algorithm.greedy(view, memory, timestep, key)
        visited = [made.search_tree.node_visits[0] > 0 for made in found]
        illegal = [made.search_tree.embeddings.illegal[0] for made in found]
        return timestep.legal, action, greedy, policy, jnp.stack(visited), jnp.stack(illegal)

    keys = jax.random.split(jax.random.key(5), count)
    scales = jnp.tile(jnp.asarray([0.0, 1.0, 30.0, -30.0]), count // 4)
    made = jax.device_get(jax.jit(jax.vmap(one))(states, observations, keys, scales))
    legal, action, greedy, policy, visited, illegal = made
    for moves in (action, greedy):
        assert np.take_along_axis(legal, moves[:, None], 1).all()
    assert not policy[~legal].any()
    np.testing.assert_allclose(policy.sum(-1), 1, atol=1e-4)
    if name == "pgx:tic_tac_toe":
        assert (legal.sum(-1) == 1).sum() >= 5
    assert visited.sum() > 2 * count * 10
    assert not illegal[visited].any()
