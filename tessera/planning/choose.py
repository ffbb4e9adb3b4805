"""Which policy runs where the user names none."""

from __future__ import annotations


def choose_policy(device_env: bool, devices: int) -> tuple[str, str]:
    """Pick a policy: (name, why). docs/policies.md says when another one pays."""
    if device_env:
        where = f"all {devices} devices" if devices > 1 else "the one device"
        return "fused", f"fused, because the environment is pure JAX: one compiled program on {where}"
    return "fused", "fused, because the environment runs on this one host: it steps while the update is computed"
