"""Early stopping: a run ends once its greedy evaluations have not improved for a while."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass
class EarlyStopping:
    """Counts evaluations without improvement. What it has counted is saved in checkpoints."""

    patience: int | None
    """Evaluations without improvement after which the run ends; None: it does not."""
    min_improvement: float = 0.0
    """What a mean return must gain on the best one before to count as an improvement."""
    best: float = -math.inf
    since_best: int = 0

    def judge(self, mean_return: float) -> str | None:
        """Count an evaluation: why the run should end, or None."""
        if mean_return > self.best and mean_return - self.best >= self.min_improvement:
            self.best, self.since_best = mean_return, 0
        else:
            self.since_best += 1
        if self.patience is None or self.since_best < self.patience:
            return None
        return f"no improvement in {self.since_best} evaluation{'s' * (self.since_best > 1)}"

    def to_json(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return {"best": self.best if math.isfinite(self.best) else None, "since_best": self.since_best}

    def restore(self, data: dict[str, Any] | None) -> None:
        """Go on from what a checkpoint holds; those of earlier versions hold nothing."""
        best = (data or {}).get("best")
        self.best = -math.inf if best is None else float(best)
        self.since_best = int((data or {}).get("since_best", 0))
