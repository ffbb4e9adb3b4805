"""What a process is sent to become a replica."""

from __future__ import annotations

from dataclasses import dataclass

from tessera.algorithms.contract import Algorithm
from tessera.engines.replica.trace import Recording
from tessera.envs.base import Environment
from tessera.graph.plan import Plan


@dataclass(frozen=True)
class Job:
    """All that a process needs to become a replica. Sent once, when it starts; it holds no arrays."""

    plan: Plan
    algorithm: Algorithm
    env: Environment
    fragment: int
    number: int
    place: int
    seed: int
    horizon: int
    x64: bool
    recording: Recording | None = None
    """What the replica is recorded by, if by anything."""
    is_successor: bool = False
    """Whether it takes the place of a replica that died."""
    life: int = 0
    """How many processes its place has had before."""
    base: int = 0
    """Updates that were made before this engine began."""

    @property
    def title(self) -> str:
        """The replica's name in messages."""
        return f"{self.plan.fragments[self.fragment].title}/{self.number}"
