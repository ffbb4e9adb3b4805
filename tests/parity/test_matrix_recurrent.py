"""Networks that remember × every policy, on the serial engine: the params of `fused`, in float64 to 1e-9."""

from __future__ import annotations

import pytest
from matrix import IN_LOCK_STEP, RECURRENT, SYNCHRONOUS, assert_parity, colouring

from tessera import policies

pytestmark = pytest.mark.usefixtures("x64")

EVERY = (*SYNCHRONOUS, *IN_LOCK_STEP)
FIRST = {policies.split(text)[0]: text for text in EVERY}.values()
"""One colouring of each policy: IMPALA takes those that run in lock step, PPO the others."""
QUICK = [("impala_gru" if text in IN_LOCK_STEP else "ppo_lstm", text) for text in FIRST]


@pytest.mark.parametrize(("name", "policy"), QUICK)
def test_every_policy_gives_the_params_of_fused(name, policy):
    assert_parity(name, colouring(policy))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "policy"), [(name, text) for name in RECURRENT for text in EVERY if (name, text) not in QUICK]
)
def test_every_policy_gives_the_params_of_fused_with_either_network_and_1_2_and_3_actors(name, policy):
    assert_parity(name, colouring(policy))
