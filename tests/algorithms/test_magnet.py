"""PPO with a magnet: what it adds to the loss, how it moves, and what a run without one keeps."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tessera import PPO, Spec, TesseraError
from tessera.agent.acting import Actor
from tessera.agent.export import GreedyFunction
from tessera.algorithms.contract import View
from tessera.algorithms.parts.actor_critic import Batch, Summary
from tessera.algorithms.parts.actor_critic_acting import Statistics
from tessera.algorithms.parts.clock import Clock
from tessera.algorithms.parts.labelled_parts import Step
from tessera.algorithms.ppo import ppo_loss
from tessera.envs import make
from tessera.envs.base import Discrete, Timestep
from tessera.maths.distributions import Categorical
from tessera.maths.statistics import Moments

MAGNETIC = PPO(widths=(4,), magnet=0.5, magnet_period=3, entropy_coefficient=0.25, entropy_end=0.05)
SPEC = Spec((2,), "float32", Discrete(2))


def batch_of(rows: int) -> Batch:
    nothing, played = jnp.zeros(rows), jnp.full(rows, np.log(0.5))
    return Batch(jnp.ones((rows, 2)), jnp.zeros(rows, jnp.int32), played, None, nothing, nothing, None)


def summary() -> Summary:
    return Summary(Moments(jnp.ones(1), jnp.zeros(1), jnp.ones(1)), Statistics(), jnp.ones(1))


def clock(applied: int) -> Clock:
    return Clock(jnp.int32(applied), jnp.float32(100))


def test_the_loss_by_hand():
    """Two rows: one at (1/4, 3/4) with a uniform magnet, one that agrees with its magnet."""
    policy = Categorical(jnp.log(jnp.asarray([[0.25, 0.75], [0.5, 0.5]])))
    magnet = Categorical(jnp.zeros((2, 2)))
    divergence = (0.25 * np.log(0.25 / 0.5) + 0.75 * np.log(0.75 / 0.5)) / 2
    arguments = (policy, jnp.zeros(2), batch_of(2), summary(), 0.2, 0.5, 0.25)
    plain, _ = ppo_loss(*arguments)
    drawn, metrics = ppo_loss(*arguments, 0.5, magnet)
    assert float(metrics["magnet_kl"]) == pytest.approx(divergence, rel=1e-5)
    assert float(drawn - plain) == pytest.approx(0.5 * divergence, rel=1e-5)
    assert float(metrics["loss"]) == pytest.approx(float(drawn))


def test_the_gradient_is_zero_at_the_magnet_and_draws_back_to_it_elsewhere():
    algorithm = replace(MAGNETIC.bind(SPEC), entropy_coefficient=0.0, entropy_end=None, value_coefficient=0.0)
    params = algorithm.init(jax.random.key(0))
    at, _ = algorithm.gradient(View(params, params, Statistics(), clock(0)), batch_of(4), summary(), jax.random.key(1))
    assert max(float(jnp.abs(g).max()) for g in jax.tree.leaves(at)) < 1e-7
    moved = jax.tree.map(lambda p: p + 0.5 * jax.random.normal(jax.random.key(2), p.shape), params)
    view = View(moved, params, Statistics(), clock(0))
    gradients, feedback = algorithm.gradient(view, batch_of(4), summary(), jax.random.key(1))
    nearer = jax.tree.map(lambda p, g: p - 0.05 * g, moved, gradients)
    after = algorithm.gradient(view._replace(params=nearer), batch_of(4), summary(), jax.random.key(1))[1]
    assert float(after.metrics["magnet_kl"]) < float(feedback.metrics["magnet_kl"])


@pytest.mark.parametrize(("applied", "weight"), [(0, 0.25), (50, 0.15), (100, 0.05)])
def test_the_entropy_bonus_falls_in_a_straight_line(applied, weight):
    algorithm = replace(MAGNETIC.bind(SPEC), value_coefficient=0.0)
    params = jax.tree.map(jnp.zeros_like, algorithm.init(jax.random.key(0)))  # uniform: an entropy of log 2
    view = View(params, params, Statistics(), clock(applied))
    _, feedback = algorithm.gradient(view, batch_of(4), summary(), jax.random.key(1))
    assert float(feedback.metrics["loss"]) == pytest.approx(-weight * np.log(2), rel=1e-5)


def test_the_weight_of_the_magnet_goes_in_a_straight_line_to_its_end():
    settings = {"entropy_coefficient": 0.0, "entropy_end": None, "value_coefficient": 0.0, "magnet_end": 2.5}
    algorithm = replace(MAGNETIC.bind(SPEC), **settings)
    params, magnet = (algorithm.init(jax.random.key(k)) for k in (0, 1))

    def losses(applied: int) -> float:
        view = View(params, magnet, Statistics(), clock(applied))
        metrics = algorithm.gradient(view, batch_of(4), summary(), jax.random.key(1))[1].metrics
        return float((metrics["loss"] - metrics["policy_loss"]) / metrics["magnet_kl"])

    assert [losses(applied) for applied in (0, 25, 100)] == pytest.approx([0.5, 1.0, 2.5], rel=1e-4)


def test_the_magnet_is_copied_every_period_and_stands_still_between():
    algorithm = MAGNETIC.bind(SPEC)
    state = algorithm.start(algorithm.init(jax.random.key(0)))._replace(clock=clock(0))
    ones = jax.tree.map(jnp.ones_like, state.params)
    begun, same = state.params, []
    for _ in range(6):
        state = algorithm.apply(state, ones, Step(jnp.float32(1)))
        state = state._replace(clock=state.clock.next())
        pairs = zip(jax.tree.leaves(state.target), jax.tree.leaves(state.params), strict=True)
        equal = [bool(jnp.array_equal(a, b)) for a, b in pairs]
        same.append(all(equal))
    assert same == [False, False, True, False, False, True]
    caught_up = algorithm.catch_up(algorithm.start(begun)._replace(clock=clock(2), params=state.params), jnp.int32(1))
    jax.tree.map(np.testing.assert_array_equal, caught_up.target, state.params)


def test_without_a_magnet_the_state_and_the_metrics_are_those_of_ppo():
    algorithm = PPO(widths=(4,)).bind(SPEC)
    state = algorithm.start(algorithm.init(jax.random.key(0)))
    assert state.target == ()
    assert algorithm.catch_up(state, jnp.int32(5)) is state
    view = View(state.params, (), Statistics(), clock(0))
    _, feedback = algorithm.gradient(view, batch_of(4), summary(), jax.random.key(1))
    assert "magnet_kl" not in feedback.metrics


def seen(env, seed: int = 0) -> Timestep:
    state, observation = env.reset(jax.random.key(seed))
    nothing = jnp.zeros((), bool)
    return Timestep(observation, jnp.zeros(()), nothing, nothing, None, legal=env.legal(state))


def test_greedy_moves_are_drawn_where_cards_are_hidden_and_nowhere_else():
    moves = {}
    for name in ("kuhn_poker", "kuhn_poker?opponent=random", "tic_tac_toe"):
        env = make(f"pgx:{name}")
        algorithm = PPO(widths=(4,)).bound_to(env)
        view = View(algorithm.init(jax.random.key(0)), (), Statistics(), None)
        timestep, keys = seen(env), jax.random.split(jax.random.key(1), 20)
        greedy = jax.vmap(partial(algorithm.greedy, view, algorithm.memory(jnp.int32(0)), timestep))
        moves[name] = set(np.asarray(greedy(keys)[0]).tolist())
    assert {name: len(each) for name, each in moves.items()} == {
        "kuhn_poker": 2, "kuhn_poker?opponent=random": 1, "tic_tac_toe": 1
    }  # fmt: skip


def test_moves_that_are_drawn_are_not_exported():
    env = make("pgx:kuhn_poker")
    algorithm = PPO(widths=(4,)).bound_to(env)
    view = View(algorithm.init(jax.random.key(0)), (), Statistics(), clock(0))
    with pytest.raises(TesseraError, match=r"ppo draws its moves in pgx:kuhn_poker.*tessera\.load"):
        GreedyFunction(Actor(algorithm, env, view))


@pytest.mark.parametrize(
    ("env", "settings", "left_out"),
    [
        ("pgx:kuhn_poker", {"gae_lambda": 1.0}, 2),
        ("pgx:leduc_holdem", {"gae_lambda": 1.0}, 7),
        ("pgx:leduc_holdem", {}, 0),  # with less, values of the other player's sight count anyway
        ("pgx:tic_tac_toe", {"gae_lambda": 1.0}, 0),
    ],
)
def test_games_with_hidden_cards_are_learned_from_where_their_end_is_seen(env, settings, left_out):
    algorithm = PPO(widths=(4,), **settings).bound_to(make(env))
    assert algorithm.open_end == left_out


def test_an_unroll_that_sees_no_end_is_refused():
    with pytest.raises(TesseraError, match=r"--unroll 7 .* 8 moves"):
        PPO(unroll=7, gae_lambda=1.0).bound_to(make("pgx:leduc_holdem")).check()
