"""The policy of a run whose user names none, where nothing was measured."""

from __future__ import annotations

from tessera.graph.colouring import make_colouring
from tessera.graph.operators import OPERATORS
from tessera.graph.policy import ALL_DEVICES, Fragment, Policy


def everything_together(devices: int = ALL_DEVICES) -> Policy:
    """All operators in one fragment, on so many devices."""
    return make_colouring([Fragment(" ".join(OPERATORS), devices=devices)])


def choose_policy(device_env: bool, devices: int) -> tuple[Policy, str]:
    """Choose a policy by a rule: (policy, reason). docs/policies.md says when another one pays."""
    if not device_env:
        reason = "the environment runs on this one host: it steps while the update is computed"
    else:
        where = f"all {devices} devices" if devices > 1 else "the one device"
        reason = f"the environment is pure JAX: one compiled program on {where}"
    return everything_together(), reason
