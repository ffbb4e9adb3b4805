"""Games: search and self-play give the params of `fused` wherever they run, in float64 to 1e-9."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from matrix import assert_same_state, run

from tessera import DQN, PPO, AlphaZero, policies

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
