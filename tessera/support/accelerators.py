"""Accelerators that several processes use."""

from __future__ import annotations

import os

PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
"""JAX reads it when it first needs a device, and then takes three quarters of an accelerator's memory unless it is
false."""


def share_accelerators() -> None:
    """Have this process take memory of accelerators as it needs it: other processes want some too.

    What the user has set stays. Where JAX has made its devices already, it is too late.
    """
    os.environ.setdefault(PREALLOCATE, "false")
