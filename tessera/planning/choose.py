"""The policy of a run whose user names none."""

from __future__ import annotations


def choose_policy(device_env: bool, devices: int) -> tuple[str, str]:
    """Choose a policy: (name, reason). docs/policies.md says when another one pays."""
    if not device_env:
        reason = "the environment runs on this one host: it steps while the update is computed"
    else:
        where = f"all {devices} devices" if devices > 1 else "the one device"
        reason = f"the environment is pure JAX: one compiled program on {where}"
    return "fused", f"fused, because {reason}"
