"""Games on the host: self-play gives the params of `fused` wherever it runs, in float64 to 1e-9."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from matrix import MOVED, assert_same_state, engine_for, furthest, run

from tessera import A2C, C51, DQN, IMPALA, PPO, QRDQN, policies
from tessera.program.overlap.double_buffer import DoubleBufferedVector

pytest.importorskip("pettingzoo")
pytestmark = pytest.mark.usefixtures("x64")

GAME = "pettingzoo:classic.tictactoe_v3"
REPLAYED: dict[str, Any] = {
    "unroll": 8, "draws": 2, "batch": 48, "capacity": 480, "warmup": 2, "widths": (8,), "learning_rate": 0.01,
}  # fmt: skip
PLAYED: dict[str, Any] = {
    "ppo": PPO(unroll=8, epochs=2, minibatches=2, widths=(8,), learning_rate=0.01),
    "dqn": DQN(**REPLAYED, n_step=3),
    "a2c": A2C(unroll=8, widths=(8,), learning_rate=0.01),
    "impala": IMPALA(unroll=8, widths=(8,), learning_rate=0.01),
    "c51": C51(**REPLAYED),
    "qr_dqn": QRDQN(**REPLAYED),
}
POLICIES = (
    "single_learner_coarse:actors=2",
    "env+store@2/act+grad/apply",  # no policy has this colouring
    "single_learner_fine:actors=2",
    "split_inference:workers=2",
)
QUICK = {("ppo", 0), ("ppo", 1), ("dqn", 0), ("dqn", 1)}


@functools.cache
def fused(name: str) -> Any:
    before, after, _ = run(PLAYED[name], policies.parse("fused:devices=1"), env=GAME)
    assert furthest(before.params, after.params) > MOVED
    return after


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        pytest.param(name, policy, marks=() if (name, k) in QUICK else pytest.mark.slow)
        for name in PLAYED
        for k, policy in enumerate(POLICIES)
    ],
)
def test_self_play_on_the_host_is_the_same_wherever_it_runs(name, policy):
    assert_same_state(PLAYED[name], policy, fused(name), GAME)


def test_self_play_is_the_same_where_half_of_the_games_are_played_during_the_other(monkeypatch):
    from tessera.envs.pettingzoo_turns import TurnsEnvironment
    from tessera.support import machine

    monkeypatch.setattr(TurnsEnvironment, "threaded", True)
    monkeypatch.setattr(machine, "cores", lambda: 2)
    engine = engine_for(PLAYED["ppo"], policies.parse("fused:devices=1"), env=GAME)
    assert any(isinstance(replica.slots.get("env_state"), DoubleBufferedVector) for replica in engine.replicas)
    engine.close()
    assert_same_state(PLAYED["ppo"], "fused:devices=1", fused("ppo"), GAME)
