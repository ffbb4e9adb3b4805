"""Evolution strategies × every policy, on the serial engine: the params of `fused`, in float64 to 1e-9."""

from __future__ import annotations

import re
from typing import Any

import pytest
from matrix import IN_LOCK_STEP, SYNCHRONOUS, assert_parity, colouring

pytestmark = pytest.mark.usefixtures("x64")


def chosen(texts: tuple[str, ...]) -> list[Any]:
    """Those with one and with three replicas are left to the slow tests."""
    return [
        pytest.param(t, marks=pytest.mark.slow if re.search(r"(workers|actors|learners)=[13]", t) else ())
        for t in texts
    ]


@pytest.mark.parametrize("policy", chosen(SYNCHRONOUS))
def test_every_synchronous_policy_gives_the_params_of_fused(policy):
    assert_parity("es", colouring(policy))


@pytest.mark.parametrize("policy", chosen(IN_LOCK_STEP))
def test_every_asynchronous_policy_in_lock_step_gives_the_params_of_fused(policy):
    assert_parity("es", colouring(policy))
