"""How a run is looked after."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CHUNK_SECONDS = 0.5
"""How long the engine runs between checks of signals, metrics and checkpoints."""
CHECKED_AT_ONCE = 16
"""Members of a population that are checked within that time; more of them are checked less often."""
SAVING_SHARE = 0.05
"""The most of its time that a run spends on checkpoints."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run is looked after; the arguments of `tessera.train` say what each means."""

    started: float
    checkpoint_every: float
    keep: int
    eval_episodes: int
    evaluate_every: int = 0
    trace: Path | None = None
    timeout: float = 60.0
    start_timeout: float = 300.0
    restarts: int = 20
    checkpoint_replay: bool = True
    address: str | None = None
    trust_network: bool = False
    members: int = 1
    """Runs that advance as one program with this one: while one of them saves, all wait."""

    @property
    def chunk_seconds(self) -> float:
        """How long the engine runs between checks."""
        return CHUNK_SECONDS * max(1.0, self.members / CHECKED_AT_ONCE)

    def pause(self, cost: float) -> float:
        """Seconds between two checkpoints, where each takes `cost` seconds."""
        return max(self.checkpoint_every, cost * self.members / SAVING_SHARE)
