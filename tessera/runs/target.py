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

    def __init__(
        self, target: float | None, evaluate: Callable[[View], float], side: SideEvaluator | None, updates: int
    ) -> None:
        """`evaluate` plays in place, where there is no `side` or it has given up; `updates` are those of the run."""
        self.target = target
        self.every = max(1, updates // CHECKS)
        """Updates between two checks."""
        self._evaluate, self._side = evaluate, side
        self._judged: float | None = None
        """The update whose evaluation was last compared with the target."""

    def reached(self, update: int, training_return: float, view: Callable[[], View]) -> bool:
        """Whether the target is reached; `view` gives the params of `update`, which is the newest."""
        if self.target is None:
            return False
        if self._side is not None and self._answer() >= self.target:
            return True
        if update % self.every or not training_return >= self.target:
            return False
        if self._side is None or self._side.given_up:
            return self._evaluate(view()) >= self.target
        if self._side.ready():
            self._side.offer(update, view())
        return False

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
