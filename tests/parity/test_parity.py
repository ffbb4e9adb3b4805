"""For one seed, every synchronous policy gives what `fused` on one device gives (law 2)."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest

from tessera import A2C, DQN, PPO, Fragment, Policy, policies
from tessera.engines.serial import SerialEngine
from tessera.train import prepare_plan

UPDATES = 3
MOVED = 1e-3
"""By how much params must have moved at the least: parity of params that stand still proves nothing."""

ALGORITHMS = {
    "ppo": PPO(
        unroll=8,
        epochs=2,
        minibatches=2,
        widths=(8,),
        learning_rate=0.01,
        normalise_observations=True,
        normalise_rewards=True,
    ),
    "a2c": A2C(unroll=8, widths=(8,), learning_rate=0.01),
    "dqn": DQN(
        unroll=8,
        draws=2,
        batch=16,
        capacity=512,
        warmup=2,
        widths=(8,),
        learning_rate=0.01,
        target_period=4,
        prioritised=True,
        n_step=3,
        double=True,
        dueling=True,
    ),
}

COLOURINGS = {
    "one device": policies.get("fused", devices=1),
    "8 devices": policies.get("fused", devices=8),
    "1 actor": policies.get("single_learner_coarse", actors=1),
    "2 actors": policies.get("single_learner_coarse", actors=2),
    "3 actors": policies.get("single_learner_coarse", actors=3),
    "unnamed": Policy("unnamed", (Fragment("env act", 2), Fragment("store grad", 2), Fragment("apply"))),
    "fine": Policy("fine", (Fragment("env", 2), Fragment("act store grad apply"))),
    "central": Policy("central", (Fragment("env act store grad", 2), Fragment("apply"))),
    "uneven": Policy("uneven", (Fragment("env act store grad", 3), Fragment("apply"))),
    "devices within replicas": Policy(
        "devices", (Fragment("env act store grad", replicas=2, devices=2), Fragment("apply"))
    ),
    "all apart": Policy("all apart", tuple(Fragment(o) for o in ("env", "act", "store", "grad", "apply"))),
    "crossed": Policy("crossed", (Fragment("act apply", 2), Fragment("env grad", 4), Fragment("store"))),
}


def run(algorithm: Any, env: str, policy: Policy, precision: str, lag: int | None = None) -> tuple[Any, Any]:
    """The learner's state before the first update and after the last, as NumPy arrays."""
    bound, made, plan = prepare_plan(algorithm, env, policy, envs=16, groups=8, lag=lag, precision=precision)
    engine = SerialEngine(plan, bound, made, seed=3, horizon=10)
    try:
        before = jax.tree.map(np.array, engine.state())
        engine.start()
        engine.advance(UPDATES)
        return before, jax.tree.map(np.array, engine.state())
    finally:
        engine.close()


@functools.cache
def on_one_device(name: str) -> Any:
    """What every colouring must give; computed once for each algorithm."""
    before, after = run(ALGORITHMS[name], "gymnax:CartPole-v1", COLOURINGS["one device"], "f64")
    assert all(x.dtype == np.float64 for x in jax.tree.leaves(after.params))
    for part in ("params", "target", "statistics"):
        was, is_now = getattr(before, part), getattr(after, part)
        assert furthest(was, is_now) > MOVED or not jax.tree.leaves(is_now)
    return after


def furthest(a: Any, b: Any) -> float:
    """The largest difference between two trees."""
    differences = jax.tree.map(lambda x, y: np.abs(x - y).max(initial=0), a, b)
    return float(max(jax.tree.leaves(differences), default=0))


def assert_parity(name: str, colouring: str) -> None:
    """Compare params, optimiser, target network, normalisers and clock."""
    expected = on_one_device(name)
    _, state = run(ALGORITHMS[name], "gymnax:CartPole-v1", COLOURINGS[colouring], "f64")
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9), state, expected)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_fused_data_parallel_over_8_devices_gives_the_params_of_one_device(name):
    assert len(jax.devices()) == 8
    assert_parity(name, "8 devices")


FAST = {("dqn", "1 actor"), ("ppo", "2 actors"), ("a2c", "3 actors")}
FAST |= {("dqn", "unnamed"), ("a2c", "fine"), ("ppo", "central")}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("name", "colouring"),
    [
        pytest.param(name, colouring, marks=() if (name, colouring) in FAST else pytest.mark.slow)
        for name in ALGORITHMS
        for colouring in COLOURINGS
        if colouring not in ("one device", "8 devices")
    ],
)
def test_every_colouring_gives_the_params_of_fused(name, colouring):
    assert_parity(name, colouring)


HOST_ALGORITHM = A2C(unroll=8, widths=(8,), learning_rate=0.01)


@functools.cache
def fused_on_the_host(lag: int) -> Any:
    before, after = run(HOST_ALGORITHM, "gymnasium:CartPole-v1", COLOURINGS["one device"], "f32", lag)
    assert furthest(before.params, after.params) > MOVED
    return after


@pytest.mark.parametrize(("colouring", "lag"), [("2 actors", 0), ("2 actors", 1), ("8 devices", 1)])
def test_with_a_host_environment_every_colouring_gives_the_params_of_fused(colouring, lag):
    _, state = run(HOST_ALGORITHM, "gymnasium:CartPole-v1", COLOURINGS[colouring], "f32", lag)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), state, fused_on_the_host(lag))


def test_lag_changes_which_params_act_with_a_host_environment():
    assert furthest(fused_on_the_host(0).params, fused_on_the_host(1).params) > 1e-4
