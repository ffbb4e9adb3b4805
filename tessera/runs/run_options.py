"""How a run is looked after."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tessera.errors import TesseraError
from tessera.runs.callbacks import Callback
from tessera.runs.drift import DriftRule

CHUNK_SECONDS = 0.5
"""How long the engine runs between checks of signals, metrics and checkpoints."""
CHECKED_AT_ONCE = 16
"""Members of a population that are checked within that time; more of them are checked less often."""
SAVING_SHARE = 0.05
"""The most of its time that a run spends on checkpoints."""
MOST_SEEDS = 10_000
"""Seeds of one call: more of them are a mistake."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run is looked after; the arguments of `tessera.train` say what each means."""

    started: float
    checkpoint_every: float
    keep: int
    eval_episodes: int
    evaluate_every: int = 0
    video_every: int = 0
    patience: int | None = None
    min_improvement: float = 0.0
    callbacks: tuple[Callback, ...] = ()
    trace: Path | None = None
    timeout: float = 60.0
    start_timeout: float = 300.0
    restarts: int = 20
    checkpoint_replay: bool = True
    address: str | None = None
    trust_network: bool = False
    replan: bool = False
    drift: DriftRule = field(default_factory=DriftRule)
    """When a run counts as drifted from its prediction."""
    exchange_every: int = 0
    """Updates from one exchange with the other members of a population to the next; 0: there is none."""
    exchanged: int = 0
    """The update of the newest exchange, where each member has processes of its own: the next one ends them."""
    members: int = 1
    """Runs that advance as one program with this one: while one of them saves, all wait."""

    def check(self, steps: int, seeds: int | None, folder: Path | None) -> None:
        """Refuse numbers, by the names of their flags, that make no sense; `folder` is made by the run."""
        ones = {"--steps": steps, "--eval-episodes": self.eval_episodes, "--keep": self.keep, "--seeds": seeds}
        for name, value in {**ones, "--patience": self.patience}.items():
            if value is not None and value < 1:
                raise TesseraError(f"{name} {value}: at least one {'step ' * (name == '--steps')}is needed")
        for name in ("evaluate_every", "video_every", "min_improvement", "restarts", "timeout", "start_timeout"):
            if not getattr(self, name) >= 0:
                raise TesseraError(f"--{name.replace('_', '-')} {getattr(self, name):g}: it cannot be below zero")
        if self.patience is not None and not self.evaluate_every:
            raise TesseraError("--patience counts evaluations: add --evaluate-every")
        into = None if self.trace is None else self.trace.absolute().parent
        if into is not None and not into.is_dir() and (folder is None or into != folder.absolute()):
            raise TesseraError(f"--trace {self.trace}: there is no folder {into}")
        if self.trace is not None and seeds is not None:
            raise TesseraError("--trace shows one run: leave --seeds out")
        if self.video_every and seeds is not None:
            raise TesseraError("--video-every films one run: leave --seeds out")
        if seeds is not None and seeds > MOST_SEEDS:
            raise TesseraError(f"--seeds {seeds}: at most {MOST_SEEDS:,} at a time")

    @property
    def chunk_seconds(self) -> float:
        """How long the engine runs between checks."""
        return CHUNK_SECONDS * max(1.0, self.members / CHECKED_AT_ONCE)

    def pause(self, cost: float) -> float:
        """Seconds between two checkpoints, where each takes `cost` seconds."""
        return max(self.checkpoint_every, cost * self.members / SAVING_SHARE)
