"""The policy of a run whose user names none."""

from __future__ import annotations

from tessera import policies
from tessera.planning.choose import choose_policy


def test_the_choice_of_a_policy_comes_with_its_reason():
    assert choose_policy(device_env=True, devices=8) == (
        "fused",
        "fused, because the environment is pure JAX: one compiled program on all 8 devices",
    )
    name, reason = choose_policy(device_env=False, devices=1)
    assert name in policies.names()
    assert "because" in reason
