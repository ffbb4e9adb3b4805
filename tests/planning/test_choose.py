"""The policy of a run whose user names none, where nothing was measured."""

from __future__ import annotations

from tessera import policies
from tessera.planning.choose import choose_policy


def test_the_rule_puts_everything_together_and_says_why():
    policy, reason = choose_policy(device_env=True, devices=8)
    assert policy.name == "env+act+store+grad+apply@1xall"
    assert policies.named(policy)[1] == "fused"
    assert reason == "the environment is pure JAX: one compiled program on all 8 devices"
    assert "host" in choose_policy(device_env=False, devices=1)[1]
