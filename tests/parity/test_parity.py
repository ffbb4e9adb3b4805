"""For one seed, every synchronous policy gives what `fused` on one device gives (law 2): devices, uneven shares, hosts.

The matrix of algorithms and policies is in test_matrix_*.py.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest
from matrix import ALGORITHMS, MOVED, assert_parity, furthest, run

from tessera import A2C, Fragment, Policy, policies

EIGHT: dict[str, Any] = {"envs": 16, "groups": 8}
"""Groups for 8 devices, and that 3 replicas cannot share evenly."""

UNEVEN = {
    "3 actors": policies.get("single_learner_coarse", actors=3),
    "3 workers": policies.get("central", workers=3, shards=2),
    "3 learners": policies.get("multi_learner", learners=3),
    "3 and 5": Policy("crossed", (Fragment("act apply", 3), Fragment("env grad", 5), Fragment("store"))),
    "devices": Policy("devices", (Fragment("env act store grad", replicas=2, devices=2), Fragment("apply"))),
}
FAST = {("dqn", "3 actors"), ("ppo", "3 workers"), ("a2c", "3 learners"), ("ppo", "3 and 5"), ("a2c", "devices")}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_fused_data_parallel_over_8_devices_gives_the_params_of_one_device(name):
    assert len(jax.devices()) == 8
    assert_parity(name, policies.get("fused", devices=8), **EIGHT)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("name", "colouring"),
    [
        pytest.param(name, colouring, marks=() if (name, colouring) in FAST else pytest.mark.slow)
        for name in ALGORITHMS
        for colouring in UNEVEN
    ],
)
def test_uneven_shares_and_devices_within_replicas_give_the_params_of_one_device(name, colouring):
    assert_parity(name, UNEVEN[colouring], **EIGHT)


HOST_ALGORITHM = A2C(unroll=8, widths=(8,), learning_rate=0.01)
ON_HOST = {
    "2 actors": policies.get("single_learner_coarse", actors=2),
    "8 devices": policies.get("fused", devices=8),
    "2 environment servers": policies.get("single_learner_fine", actors=2),
    "2 workers, 2 shards": policies.get("central", workers=2, shards=2),
}


def run_on_host(policy: Policy, lag: int) -> tuple[Any, Any]:
    before, after, _ = run(HOST_ALGORITHM, policy, env="gymnasium:CartPole-v1", precision="f32", lag=lag, **EIGHT)
    return before, after


@functools.cache
def fused_on_the_host(lag: int) -> Any:
    before, after = run_on_host(policies.get("fused", devices=1), lag)
    assert furthest(before.params, after.params) > MOVED
    return after


@pytest.mark.parametrize(
    ("colouring", "lag"),
    [("2 actors", 0), ("2 actors", 1), ("8 devices", 1), ("2 environment servers", 1), ("2 workers, 2 shards", 0)],
)
def test_with_a_host_environment_every_colouring_gives_the_params_of_fused(colouring, lag):
    _, state = run_on_host(ON_HOST[colouring], lag)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), state, fused_on_the_host(lag))


def test_lag_changes_which_params_act_with_a_host_environment():
    assert furthest(fused_on_the_host(0).params, fused_on_the_host(1).params) > 1e-4
