"""The greedy episodes of a run: at fixed updates, to see whether its target is reached, and at the end."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from tessera.algorithms.contract import View
from tessera.envs.base import is_device
from tessera.errors import TesseraError
from tessera.evaluation.evaluator import Evaluation, Evaluator
from tessera.evaluation.side_evaluator import SIDE_SEED, SideEvaluator
from tessera.runs.display import number
from tessera.runs.requests import Evaluate, Requests
from tessera.runs.run_options import RunOptions
from tessera.runs.target import TargetCheck

EVALUATION_SEED = 1_000_003
"""Seed of the episodes at the end, which are others than those that decided to stop."""


@dataclass(frozen=True)
class Evaluated:
    """Greedy episodes, and what played them."""

    update: int
    env_steps: int
    evaluation: Evaluation
    view: View
    """The params of `update`; training reuses their memory with its next update."""
    periodic: bool = False
    """Whether `--evaluate-every` has asked for it."""

    @property
    def return_mean(self) -> float:
        """Mean return of the episodes."""
        return self.evaluation.return_mean

    def in_words(self, best: bool) -> str:
        """The line that a user sees; `best` says whether none before had a higher mean."""
        played = self.evaluation
        spread = "" if math.isnan(played.return_std) else f" ± {played.return_std:.1f}"
        counts = "" if played.outcomes is None else "  ({} won, {} drawn, {} lost)".format(*played.outcomes)
        return (
            f"evaluation at update {self.update}  steps {self.env_steps:,}  greedy return "
            f"{number(played.return_mean)}{spread} over {len(played.returns)} episodes{counts}{'  best so far' * best}"
        )

    def as_metrics(self) -> dict[str, float]:
        """What rows of metrics hold of it."""
        played = self.evaluation
        return {
            "eval/return_mean": played.return_mean,
            "eval/return_std": played.return_std,
            "eval/update": self.update,
        }


class RunEvaluations:
    """Plays greedy episodes with the params of a run.

    Compiled environments are quick, and training waits for them: what follows from an evaluation depends on the seed
    alone. Host environments can take minutes: a process plays while training goes on, one evaluation at a time.
    """

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
        self._newest: dict[str, float] = {}
        self._offered_steps = 0
        """Environment steps at the update whose params the process has."""
        self._side: SideEvaluator | None = None
        self.target = TargetCheck(target, updates)
        if not is_device(env) and (self._every or target is not None):
            limits = (options.timeout, options.start_timeout)
            with suppress(TesseraError):  # what cannot be sent to a process is played in this one
                self._side = SideEvaluator(algorithm, env, options.eval_episodes, seed, note, *limits)

    def updates_to_next(self, update: int) -> int | None:
        """Updates until an evaluation may fall due; None if none ever does."""
        periods = [self._every] * bool(self._every) + [self.target.every] * (self.target.target is not None)
        return min((every - update % every for every in periods), default=None)

    def after(
        self, update: int, env_steps: int, training_return: float, view: Callable[[], View]
    ) -> Requests[list[Evaluated]]:
        """Evaluations that are known now, with those that fell due; `view` gives the params of `update`, the newest."""
        found = self._arrived()
        if self._falls_due(update, training_return) and not any(self.reach_target(each) for each in found):
            if self._side is None or self._side.given_up:
                newest = view()
                played = yield from self._play(newest, SIDE_SEED)
                found.append(Evaluated(update, env_steps, played, newest, self._is_periodic(update)))
            elif self._side.ready():
                self._offered_steps = env_steps
                self._side.offer(update, view())
        if found:
            self._newest = found[-1].as_metrics()
        return found

    def reach_target(self, evaluated: Evaluated) -> bool:
        """Whether these episodes reach the target."""
        return self.target.met_by(evaluated.return_mean)

    def newest(self) -> dict[str, float]:
        """The newest evaluation during training, as metrics."""
        return self._newest

    def none_came(self) -> str:
        """What is said at the end if none came that `--evaluate-every` has asked for; empty if one did."""
        asked = self._every and not self._newest
        return f"--evaluate-every {self._every}: the run was over before the first evaluation was" if asked else ""

    def forget(self) -> None:
        """The run has gone back: what was being evaluated is not what it will be."""
        self._newest = {}
        if self._side is not None:
            self._side.withdraw()

    def final(self, view: View) -> Requests[Evaluation]:
        """Evaluate the last params; what is still played beside decides nothing any more."""
        self.close()
        return (yield from self._play(view, EVALUATION_SEED))

    def close(self) -> None:
        """End the process beside this one."""
        if self._side is not None:
            self._side.close()

    def _is_periodic(self, update: int) -> bool:
        return bool(self._every) and not update % self._every

    def _falls_due(self, update: int, training_return: float) -> bool:
        return self._is_periodic(update) or self.target.falls_due(update, training_return)

    def _arrived(self) -> list[Evaluated]:
        arrived = None if self._side is None else self._side.take()
        if arrived is None:
            return []
        periodic = self._is_periodic(arrived.update)
        return [Evaluated(arrived.update, self._offered_steps, arrived.evaluation, arrived.view, periodic)]

    def _play(self, view: View, seed: int) -> Requests[Evaluation]:
        return (yield Evaluate(view, self._seed + seed))
