"""The greedy episodes of a run: beside training, to see whether its target is reached, and at the end."""

from __future__ import annotations

from collections.abc import Callable

from tessera.algorithms.contract import View
from tessera.envs.base import is_device
from tessera.errors import TesseraError
from tessera.evaluation.evaluator import Evaluation, Evaluator
from tessera.evaluation.side_evaluator import SIDE_SEED, SideEvaluator
from tessera.runs.requests import Evaluate, Requests
from tessera.runs.run_options import RunOptions
from tessera.runs.target import TargetCheck

EVALUATION_SEED = 1_000_003
"""Seed of the episodes at the end, which are others than those that decided to stop."""


class RunEvaluations:
    """Plays greedy episodes with the params of a run, in this process or in one beside it."""

    def __init__(
        self,
        evaluator: Evaluator,
        options: RunOptions,
        seed: int,
        target: float | None,
        updates: int,
        note: Callable[[str], None],
    ) -> None:
        """No process starts before it is needed; `note` prints a line for the user."""
        algorithm, env = evaluator.algorithm, evaluator.env
        self._seed, self._every = seed, options.evaluate_every
        self._in_place = options.members > 1
        self._played: dict[str, float] = {}
        """The newest evaluation that training has waited for, as metrics."""
        self._side: SideEvaluator | None = None
        beside = target is not None and not is_device(env)
        if (options.evaluate_every and not self._in_place) or beside:
            limits = (options.timeout, options.start_timeout)
            try:
                self._side = SideEvaluator(algorithm, env, options.eval_episodes, seed, note, *limits)
            except TesseraError:  # it cannot be sent to a process; a target can be checked in this one, too
                if options.evaluate_every:
                    raise
        self.target = TargetCheck(target, self._side if beside else None, updates)

    def reached_target(self, update: int, training_return: float, view: Callable[[], View]) -> Requests[bool]:
        """Whether greedy episodes reach the target; `view` gives the params of `update`, which is the newest."""
        if self.target.reached(update, training_return, view):
            return True
        if not self.target.due_in_place(update, training_return):
            return False
        evaluation = yield from self._play(view(), SIDE_SEED)
        return self.target.met_by(evaluation.return_mean)

    def offer(self, update: int, made: int, view: Callable[[], View]) -> Requests[None]:
        """Have the newest params evaluated if that fell due with the `made` updates up to `update`.

        A process beside training does it, if it is idle. Members of a population wait for it: one program plays the
        episodes of all.
        """
        if not self._every or update // self._every == (update - made) // self._every:
            return
        if self._in_place:
            played = yield from self._play(view(), SIDE_SEED)
            figures = {"return_mean": played.return_mean, "return_std": played.return_std, "update": update}
            self._played = {f"eval/{name}": value for name, value in figures.items()}
        elif self._side is not None and self._side.ready():
            self._side.offer(update, view())

    def newest(self) -> dict[str, float]:
        """The newest evaluation during training, as metrics."""
        return self._played if self._side is None else self._side.newest()

    def final(self, view: View) -> Requests[Evaluation]:
        """Evaluate the last params; what is still played beside decides nothing any more."""
        self.close()
        return (yield from self._play(view, EVALUATION_SEED))

    def close(self) -> None:
        """End the process beside this one."""
        if self._side is not None:
            self._side.close()

    def _play(self, view: View, seed: int) -> Requests[Evaluation]:
        return (yield Evaluate(view, self._seed + seed))
