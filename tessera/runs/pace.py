"""How fast a run goes, and how many updates it makes at a time."""

from __future__ import annotations

import math

import numpy as np

from tessera.program.compile import CHUNK


class Pace:
    """Speed since the first call of the engine, which compiles and does not count."""

    def __init__(self, chunk_seconds: float) -> None:
        self._chunk_seconds = chunk_seconds
        self.begin()

    def begin(self) -> None:
        """Measure anew: another plan compiles again."""
        self.count = 1
        """Updates to make next."""
        self.speed = math.nan
        """Environment steps per second; nan before it can be measured."""
        self._since: tuple[int, float] | None = None

    def note(self, updates: int, seconds: float, env_steps: int, now: float) -> None:
        """Count a call of the engine, after which the run has made so many steps."""
        if self._since is None:
            self._since = env_steps, now
            return
        self.count = int(np.clip(self._chunk_seconds / max(seconds / updates, 1e-9), 1, CHUNK))
        steps, begun = self._since
        self.speed = (env_steps - steps) / max(now - begun, 1e-9) if env_steps > steps else math.nan
