"""The greedy episodes of a run: beside training, to see whether its target is reached, and at the end."""

from __future__ import annotations

from collections.abc import Callable

from tessera.algorithms.contract import Algorithm, View
from tessera.envs.base import Environment, is_device
from tessera.errors import TesseraError
from tessera.evaluation.evaluator import Evaluation, Evaluator
from tessera.evaluation.side_evaluator import SIDE_SEED, SideEvaluator
from tessera.runs.run_options import RunOptions
from tessera.runs.target import TargetCheck

EVALUATION_SEED = 1_000_003
"""Seed of the episodes at the end, which are others than those that decided to stop."""


class RunEvaluations:
    """Plays greedy episodes with the params of a run, in this process or in one beside it."""

    def __init__(
        self,
        algorithm: Algorithm,
        env: Environment,
        options: RunOptions,
        seed: int,
        target: float | None,
        updates: int,
        note: Callable[[str], None],
    ) -> None:
        """No process starts before it is needed; `note` prints a line for the user."""
        self.evaluator, self._episodes, self._seed = Evaluator(algorithm, env), options.eval_episodes, seed
        self._every = options.evaluate_every
        self._side: SideEvaluator | None = None
        beside = target is not None and not is_device(env)
        if options.evaluate_every or beside:
            limits = (options.timeout, options.start_timeout)
            try:
                self._side = SideEvaluator(algorithm, env, options.eval_episodes, seed, note, *limits)
            except TesseraError:  # it cannot be sent to a process; a target can be checked in this one, too
                if options.evaluate_every:
                    raise
        self.target = TargetCheck(target, self._judge, self._side if beside else None, updates)

    def offer(self, update: int, made: int, view: Callable[[], View]) -> None:
        """Have the newest params evaluated beside training, if that fell due with the `made` updates up to `update`."""
        side, every = self._side, self._every
        if every and side is not None and update // every > (update - made) // every and side.ready():
            side.offer(update, view())

    def newest(self) -> dict[str, float]:
        """The newest evaluation beside training, as metrics."""
        return {} if self._side is None else self._side.newest()

    def final(self, view: View) -> Evaluation:
        """Evaluate the last params; what is still played beside decides nothing any more."""
        self.close()
        return self._evaluate(view, EVALUATION_SEED)

    def close(self) -> None:
        """End the process beside this one."""
        if self._side is not None:
            self._side.close()

    def _judge(self, view: View) -> float:
        """The mean return that decides whether to stop."""
        return self._evaluate(view, SIDE_SEED).return_mean

    def _evaluate(self, view: View, seed: int) -> Evaluation:
        return self.evaluator(view, self._episodes, self._seed + seed)
