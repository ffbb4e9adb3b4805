"""Greedy episodes with given params: the acting part of the training program, without exploration and store."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import numpy as np

from tessera import policies
from tessera.algorithms.contract import Algorithm, View
from tessera.envs.base import Environment, HostVector, is_device
from tessera.evaluation.intervals import bootstrap_interval, interquartile_mean
from tessera.evaluation.outcomes import Outcomes
from tessera.graph.plan import Needs, Plan, make_plan
from tessera.program.compile import compile_program
from tessera.program.initial import initial_slots, population_slots
from tessera.program.interpreter import drive
from tessera.program.nodes import Node
from tessera.program.training_program import Training

STEPS = 128
"""Steps between checks whether enough episodes have ended; fewer where the longest episode has fewer."""
LONGEST = 200_000
"""Steps after which evaluation gives up on an environment whose episodes never end."""


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of episodes, one entry each."""

    returns: np.ndarray
    lengths: np.ndarray
    opponent: str = field(default="", kw_only=True)
    """Who played the other side, if these are games."""

    @property
    def outcomes(self) -> Outcomes | None:
        """Games won, drawn and lost; None if these are no games."""
        return Outcomes.of(self.returns) if self.opponent else None

    @property
    def return_mean(self) -> float:
        """Mean return; nan if no episode ended."""
        return float(self.returns.mean()) if len(self.returns) else float("nan")

    @property
    def return_std(self) -> float:
        """Standard deviation of returns."""
        return float(self.returns.std()) if len(self.returns) else float("nan")

    @property
    def return_median(self) -> float:
        """Median return."""
        return float(np.median(self.returns)) if len(self.returns) else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        """95 % bootstrap interval of the mean return, over episodes."""
        return bootstrap_interval(self.returns)

    @property
    def iqm(self) -> float:
        """Mean of the returns without the lowest and the highest quarter."""
        return float(interquartile_mean(self.returns)) if len(self.returns) else float("nan")

    @property
    def iqm_interval(self) -> tuple[float, float]:
        """95 % bootstrap interval of the interquartile mean, over episodes."""
        return bootstrap_interval(self.returns, interquartile_mean)

    @property
    def length_mean(self) -> float:
        """Mean length of episodes."""
        return float(self.lengths.mean()) if len(self.lengths) else float("nan")


class Evaluator:
    """Plays greedy episodes from the start; compiled once for any params."""

    def __init__(self, algorithm: Algorithm, env: Environment) -> None:
        self.algorithm, self.env = algorithm, env
        self._training = Training(algorithm, env, 1, greedy=True)
        self._steps = min(STEPS, env.spec.time_limit or STEPS)

    def __call__(
        self, view: View, episodes: int = 100, seed: int = 0, progress: Callable[[], None] = lambda: None
    ) -> Evaluation:
        """Play greedy episodes, equally many in each environment, so that short episodes are not favoured.

        `progress` is called after at most STEPS steps.
        """
        slots = initial_slots(self._training, self._plan(episodes), 0, 0, seed, 1, None)
        slots["acting"] = jax.tree.map(jax.numpy.asarray, view._replace(target=()))
        try:
            return self._play(self._alone, slots, episodes, progress)[0]
        finally:
            if isinstance(slots.get("env_state"), HostVector):
                slots["env_state"].close()

    def evaluate_all(self, views: Sequence[View], episodes: int, seeds: Sequence[int]) -> list[Evaluation]:
        """Play greedy episodes with each of several params, all in one program; each result as if it were alone."""
        slots = population_slots(self._training, self._plan(episodes), seeds, 1)
        slots["acting"] = jax.tree.map(lambda *x: np.stack(x), *[view._replace(target=()) for view in views])
        return self._play(self._together, slots, episodes)

    @functools.cached_property
    def _alone(self) -> EvaluationPrograms:
        return evaluation_programs(self._training, self._steps)

    @functools.cached_property
    def _together(self) -> EvaluationPrograms:
        return evaluation_programs(self._training, self._steps, population=True)

    def _plan(self, episodes: int) -> Plan:
        """Environments and actors for so many episodes."""
        return evaluation_plan(self.algorithm, self.env, min(episodes, 128 if is_device(self.env) else 16))

    def _play(
        self,
        programs: EvaluationPrograms,
        slots: dict[str, Any],
        episodes: int,
        progress: Callable[[], None] = lambda: None,
    ) -> list[Evaluation]:
        """Play until each environment has ended its share of episodes; these, round by round, for each member."""
        envs = slots["ids"].size
        quota = -(-episodes // envs)
        run_program(programs.reset, slots)
        ended: list[list[list[tuple[float, int]]]] = []
        for _ in range(LONGEST // self._steps):
            run_program(programs.play, slots)
            progress()
            plays = jax.tree.map(lambda x: x.reshape(-1, self._steps, envs), jax.device_get(slots["episode_steps"]))
            ended = ended or [[[] for _ in range(envs)] for _ in plays.done]
            for m, t, e in zip(*np.nonzero(plays.done), strict=True):
                ended[m][e].append((plays.total[m, t, e], plays.length[m, t, e]))
            if all(len(episodes) >= quota for member in ended for episodes in member):
                break
        opponent = self.env.opponent
        return [replace(_first_rounds(member, quota, episodes), opponent=opponent) for member in ended]


class EvaluationPrograms(NamedTuple):
    """The programs of an evaluation."""

    reset: tuple[Node, ...]
    play: tuple[Node, ...]


def evaluation_plan(algorithm: Algorithm, env: Environment, envs: int) -> Plan:
    """Where greedy episodes are played: by one actor, in so many environments."""
    needs = Needs(algorithm.name, env.name, is_device(env), None, False, False)
    return make_plan(policies.get("single_learner_coarse", actors=1), needs, envs, groups=1)


def evaluation_programs(training: Training, steps: int, population: bool = False) -> EvaluationPrograms:
    """Compile a reset and so many steps."""
    wanted = frozenset({"episode_steps"})
    return EvaluationPrograms(
        compile_program(training.start()[:1], population=population),
        compile_program(training.play(steps), wanted=wanted, population=population),
    )


def _first_rounds(ended: list[list[tuple[float, int]]], quota: int, episodes: int) -> Evaluation:
    """The first episodes of each environment, one of each at a time."""
    rounds = [e[k] for k in range(quota) for e in ended if k < len(e)][:episodes]
    return Evaluation(np.asarray([r[0] for r in rounds], np.float64), np.asarray([r[1] for r in rounds], np.int64))


def run_program(program: tuple[Node, ...], slots: dict[str, Any]) -> None:
    """Run a program that exchanges nothing."""
    for _ in drive(program, slots):
        pass
