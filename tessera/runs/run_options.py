"""How a run is looked after."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
