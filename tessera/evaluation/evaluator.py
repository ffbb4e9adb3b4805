"""Greedy episodes with given params: the acting part of the training program, without exploration and store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from tessera import policies
from tessera.algorithms.contract import Algorithm, View
from tessera.envs.base import Environment, HostVector, Timestep, is_device
from tessera.evaluation.intervals import bootstrap_interval, interquartile_mean
from tessera.graph.plan import Needs, make_plan
from tessera.program.compile import compile_program
from tessera.program.initial import initial_slots
from tessera.program.interpreter import drive
from tessera.program.training_program import Training

STEPS = 128
"""Steps between checks whether enough episodes have ended."""
LONGEST = 200_000
"""Steps after which evaluation gives up on an environment whose episodes never end."""


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of episodes, one entry each."""

    returns: np.ndarray
    lengths: np.ndarray

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
        self._training = Training(algorithm, env, 1, greedy=True)
        self._reset = compile_program(self._training.start()[:1])
        self._play = compile_program(self._training.play(STEPS), wanted=frozenset({"episode_steps"}))

    def __call__(
        self, view: View, episodes: int = 100, seed: int = 0, progress: Callable[[], None] = lambda: None
    ) -> Evaluation:
        """Play greedy episodes, equally many in each environment, so that short episodes are not favoured.

        `progress` is called after every STEPS steps.
        """
        algorithm, env = self._training.algorithm, self._training.env
        envs = min(episodes, 128 if is_device(env) else 16)
        quota = -(-episodes // envs)
        needs = Needs(algorithm.name, env.name, is_device(env), None, False, False)
        plan = make_plan(policies.get("single_learner_coarse", actors=1), needs, envs, groups=1)
        slots = initial_slots(self._training, plan, 0, 0, seed, 1, None)
        slots["acting"] = jax.tree.map(jax.numpy.asarray, view._replace(target=()))
        try:
            _run(self._reset, slots)
            returns, lengths = _play(lambda: _run(self._play, slots, progress), slots, envs, quota)
        finally:
            if isinstance(slots.get("env_state"), HostVector):
                slots["env_state"].close()
        return Evaluation(returns[:episodes], lengths[:episodes])


def _play(run: Callable[[], None], slots: dict[str, Any], envs: int, quota: int) -> tuple[np.ndarray, np.ndarray]:
    """Play until each environment has ended `quota` episodes; returns and lengths of these, round by round."""
    ended: list[list[tuple[float, int]]] = [[] for _ in range(envs)]
    for _ in range(LONGEST // STEPS):
        run()
        plays = jax.device_get(slots["episode_steps"])
        done = plays.done.reshape(STEPS, envs)
        for t, e in zip(*np.nonzero(done), strict=True):
            ended[e].append((plays.total.reshape(STEPS, envs)[t, e], plays.length.reshape(STEPS, envs)[t, e]))
        if min(len(e) for e in ended) >= quota:
            break
    rounds = [e[k] for k in range(quota) for e in ended if k < len(e)]
    return np.asarray([r[0] for r in rounds], np.float64), np.asarray([r[1] for r in rounds], np.int64)


def _run(program: Any, slots: dict[str, Any], progress: Callable[[], None] = lambda: None) -> None:
    for _ in drive(program, slots):
        pass
    progress()


def make_act(algorithm: Algorithm, view: View) -> Callable[..., np.ndarray]:
    """Make a function from an observation to the greedy action; `first=True` begins an episode."""

    @jax.jit
    def act(view: View, memory: Any, observation: Any, first: Any) -> tuple[Any, Any]:
        timestep = Timestep(observation, jax.numpy.zeros(()), first, jax.numpy.zeros((), bool), None)
        return algorithm.greedy(view, memory, timestep, jax.random.key(0))

    dtype = np.dtype(algorithm.world.observation_dtype)
    memory = algorithm.memory(jax.numpy.int32(0))

    def choose(observation: Any, first: bool = False) -> np.ndarray:
        nonlocal memory
        action, memory = act(view, memory, np.asarray(observation, dtype), np.asarray(first))
        return np.asarray(action)

    return choose
