"""DQN × every policy, on the serial engine: the params of `fused`, in float64 to 1e-9."""

from __future__ import annotations

import pytest
from matrix import IN_LOCK_STEP, SYNCHRONOUS, assert_parity, colouring, with_two_replicas

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize("policy", with_two_replicas(SYNCHRONOUS, "distributed_replay", "gorila"))
def test_every_synchronous_policy_gives_the_params_of_fused(policy):
    assert_parity("dqn", colouring(policy))


@pytest.mark.parametrize("policy", with_two_replicas(IN_LOCK_STEP, "distributed_replay", "gorila"))
def test_every_asynchronous_policy_in_lock_step_gives_the_params_of_fused(policy):
    assert_parity("dqn", colouring(policy))
