"""The target return of a run: when greedy episodes are played to see whether it is reached."""

from __future__ import annotations

CHECKS = 100
"""How often in a run the target return is checked: at fixed updates, so that a run's end does not depend on speed."""


class TargetCheck:
    """Whether greedy episodes reach the target: played at fixed updates, and only once training returns do."""

    def __init__(self, target: float | None, updates: int) -> None:
        """`updates` are those of the run."""
        self.target = target
        self.every = max(1, updates // CHECKS)
        """Updates between two checks."""

    def met_by(self, mean_return: float) -> bool:
        """Whether this mean return is enough."""
        return self.target is not None and mean_return >= self.target

    def falls_due(self, update: int, training_return: float) -> bool:
        """Whether greedy episodes have to be played with the params of `update`."""
        return not update % self.every and self.met_by(training_return)
