"""A machine, as far as plans depend on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """What a machine has for a run."""

    cores: int
    accelerators: int
    memory: int
    """Bytes that processes can take."""
    accelerator_memory: int
    """Bytes of each accelerator; 0 if there is none."""
