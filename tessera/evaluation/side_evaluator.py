"""The side evaluator: a process that plays greedy episodes with published params and never blocks training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from tessera.algorithms.contract import Algorithm, View
from tessera.engines.replica.replica import wide_numbers
from tessera.envs.base import Environment
from tessera.evaluation.evaluator import Evaluation, Evaluator
from tessera.evaluation.side_process import SideProcess, answer, offers, prepare_beside, progress_messages

SIDE_SEED = 2_000_003
"""Added to a run's seed for the episodes during training, which may decide when to stop; others give the verdict."""


@dataclass(frozen=True)
class SideEvaluation:
    """What a process has found."""

    update: int
    view: View
    """The params that played, as NumPy arrays."""
    evaluation: Evaluation


@dataclass(frozen=True)
class EvaluationJob:
    """All that a process needs to evaluate."""

    algorithm: Algorithm
    env: Environment
    episodes: int
    seed: int
    x64: bool

    def work(self, connection: Connection) -> None:
        """Evaluate params as they arrive, until the driver closes the connection."""
        prepare_beside(self.x64)
        evaluator = Evaluator(self.algorithm, self.env)
        for _, view in offers(connection, self.algorithm):
            answer(connection, {}, vars(evaluator(view, self.episodes, self.seed, progress_messages(connection))))


class SideEvaluator(SideProcess[SideEvaluation]):
    """The driver's end of a process that evaluates."""

    title = "evaluator"

    def __init__(
        self,
        algorithm: Algorithm,
        env: Environment,
        episodes: int,
        seed: int,
        note: Callable[[str], None] = print,
        timeout: float = 60.0,
        start_timeout: float = 300.0,
    ) -> None:
        """`timeout` is how many seconds it may be silent as it plays, `start_timeout` until it first plays."""
        job = EvaluationJob(algorithm, env, episodes, seed + SIDE_SEED, wide_numbers())
        super().__init__(job, note, timeout, start_timeout)

    def found(self, update: int, view: View, meta: dict[str, Any], arrays: dict[str, Any]) -> SideEvaluation:
        """The episodes that were played."""
        del meta
        return SideEvaluation(update, view, Evaluation(**arrays))
