"""Networks that remember × every policy, on the serial engine: the params of `fused`, in float64 to 1e-9."""

from __future__ import annotations

import pytest
from matrix import IN_LOCK_STEP, RECURRENT, SYNCHRONOUS, assert_parity, colouring

from tessera import policies

pytestmark = pytest.mark.usefixtures("x64")

EVERY = (*SYNCHRONOUS, *IN_LOCK_STEP)
FIRST = {policies.split(text)[0]: text for text in EVERY}
"""One colouring of each policy."""


@pytest.mark.parametrize("policy", FIRST.values())
@pytest.mark.parametrize("name", RECURRENT)
def test_every_policy_gives_the_params_of_fused(name, policy):
    assert_parity(name, colouring(policy))


@pytest.mark.slow
@pytest.mark.parametrize("policy", [text for text in EVERY if text not in FIRST.values()])
@pytest.mark.parametrize("name", RECURRENT)
def test_with_1_2_and_3_actors_too(name, policy):
    assert_parity(name, colouring(policy))
