"""The target return of a run: when greedy episodes are played to see whether it is reached, and by whom."""

from __future__ import annotations

from collections.abc import Callable

from tessera.algorithms.contract import View
from tessera.evaluation.side_evaluator import SideEvaluator

CHECKS = 100
"""How often in a run the target return is checked: at fixed updates, so that a run's end does not depend on speed."""


class TargetCheck:
    """Whether greedy episodes reach the target: played at fixed updates, and only once training returns do.

    Compiled environments are quick, and training waits for the answer: where such a run ends depends on its seed alone.
    Host environments can take minutes: the side evaluator plays while training goes on, one check at a time, and the
    run ends when its answer arrives.
    """

    def __init__(self, target: float | None, side: SideEvaluator | None, updates: int) -> None:
        """`side` plays beside training, if there is one; `updates` are those of the run."""
        self.target = target
        self.every = max(1, updates // CHECKS)
        """Updates between two checks."""
        self._side = side
        self._judged: float | None = None
        """The update whose evaluation was last compared with the target."""

    def reached(self, update: int, training_return: float, view: Callable[[], View]) -> bool:
        """Whether episodes beside training reached the target; else more may be played, with the params of `update`."""
        if self._side is None:
            return False
        if self.met_by(self._answer()):
            return True
        if self._falls_due(update, training_return) and not self._side.given_up and self._side.ready():
            self._side.offer(update, view())
        return False

    def met_by(self, mean_return: float) -> bool:
        """Whether this mean return is enough."""
        return self.target is not None and mean_return >= self.target

    def due_in_place(self, update: int, training_return: float) -> bool:
        """Whether training has to wait for episodes with the params of `update`: nobody else can play them."""
        return self._falls_due(update, training_return) and (self._side is None or self._side.given_up)

    def _falls_due(self, update: int, training_return: float) -> bool:
        return not update % self.every and self.met_by(training_return)

    def forget(self) -> None:
        """The run has gone back: what was being evaluated is not what it will be."""
        self._judged = None
        if self._side is not None:
            self._side.withdraw()

    def _answer(self) -> float:
        """The mean return of an evaluation that has come since the last call; nan if there is none."""
        assert self._side is not None
        newest = self._side.newest()
        if not newest or newest["eval/update"] == self._judged:
            return float("nan")
        self._judged = newest["eval/update"]
        return newest["eval/return_mean"]
