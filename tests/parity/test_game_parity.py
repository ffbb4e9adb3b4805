"""Games: search and self-play give the params of `fused` wherever they run, in float64 to 1e-9."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest
from matrix import MOVED, assert_same_state, engine_for, furthest, run

from tessera import DQN, PPO, AlphaZero, policies
from tessera.runs.checkpoint import flatten, unflatten

pytestmark = pytest.mark.usefixtures("x64")

GAME = "pgx:tic_tac_toe"
PLAYED: dict[str, Any] = {
    "alphazero": AlphaZero(
        unroll=4, simulations=4, draws=2, batch=48, capacity=480, warmup=1, channels=4, blocks=1, learning_rate=0.01
    ),
    "ppo": PPO(unroll=8, epochs=2, minibatches=2, widths=(8,), learning_rate=0.01),
    "dqn": DQN(unroll=8, draws=2, batch=48, capacity=480, warmup=2, widths=(8,), learning_rate=0.01, n_step=3),
}


@functools.cache
def fused(name: str) -> Any:
    return run(PLAYED[name], policies.parse("fused:devices=1"), env=GAME)[1]


@pytest.mark.parametrize(
    "policy",
    [
        "single_learner_coarse:actors=2",
        "split_inference:workers=2",
        "single_learner_fine:actors=2",
        "env+store@2/act+grad/apply",  # no policy has this colouring
    ],
)
def test_a_search_is_the_same_wherever_it_runs(policy):
    assert_same_state(PLAYED["alphazero"], policy, fused("alphazero"), GAME)


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_self_play_is_the_same_wherever_it_runs(name):
    assert_same_state(PLAYED[name], "single_learner_coarse:actors=2", fused(name), GAME)


CARDS = "pgx:kuhn_poker"
MAGNETIC = PPO(
    unroll=8, epochs=2, minibatches=2, widths=(8,), learning_rate=0.01, gamma=1.0, gae_lambda=1.0,
    magnet=0.5, magnet_period=5, entropy_coefficient=0.1, entropy_end=0.0,
)  # fmt: skip


@functools.cache
def with_a_magnet() -> Any:
    before, after, _ = run(MAGNETIC, policies.parse("fused:devices=1"), env=CARDS)
    assert furthest(before.target, after.target) > MOVED  # copied once or twice
    assert furthest(after.params, after.target) > MOVED
    return after


@pytest.mark.parametrize(
    "policy",
    ["single_learner_coarse:actors=2", pytest.param("central:workers=2,shards=2", marks=pytest.mark.slow)],
)
def test_a_magnet_is_the_same_wherever_it_is_learned_with(policy):
    assert_same_state(MAGNETIC, policy, with_a_magnet(), CARDS)


def test_a_run_with_a_magnet_goes_on_exactly_where_it_stopped():
    engines = [engine_for(MAGNETIC, policies.parse("fused:devices=1"), env=CARDS) for _ in range(2)]
    engines[0].start()
    engines[0].advance(2)  # 8 gradients, of which the 5th was copied
    saved = flatten(jax.device_get(engines[0].snapshot()))
    engines[1].restore(unflatten(engines[1].template(), saved, "the checkpoint"))
    states = []
    for engine in engines:
        engine.advance(1)
        states.append(jax.device_get(engine.state()))
        engine.close()
    jax.tree.map(np.testing.assert_array_equal, *states)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9), states[1], with_a_magnet())
