"""Checks of PettingZoo's parallel environments."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from tessera.envs.checks.findings import EnvironmentCheck, values_in
from tessera.envs.checks.gymnasium import (
    QUICK_STEPS,
    Raised,
    calling,
    check_flag,
    check_observation,
    check_reward,
    reporting,
)
from tessera.errors import TesseraError

STEP = "observations, rewards, terminations, truncations, infos"


def refuse_broken_parallel(env: Any, name: str) -> None:
    """Play a reset and a few steps, and refuse what cannot be trained in."""
    with contextlib.suppress(Raised):
        _reset(env, name, seed=0)
        for _ in range(QUICK_STEPS):
            _step(env, name)
            if not env.agents:
                return


def play_parallel(env: Any, report: EnvironmentCheck, steps: int, seed: int) -> np.ndarray:
    """Play random actions and note what is wrong with the seeds; at which steps episodes ended."""
    name, ended = report.name, np.zeros((steps, 1), bool)
    with reporting(report, name):
        once, again = (_arrays(_reset(env, name, seed)) for _ in range(2))
        if any(not np.array_equal(once[agent], again[agent]) for agent in once):
            report.error(
                f"two resets of {name} with the same seed lead to different starts, so runs cannot be repeated: draw "
                "from a generator that reset() seeds"
            )
        begun = time.perf_counter()
        for k in range(steps):
            terminations, truncations = _step(env, name)
            if any(terminations.get(agent) and truncations.get(agent) for agent in terminations):
                report.warning(f"{name} terminates and truncates an agent in the same step: set one of them")
            if not env.agents or all(terminations.get(a) or truncations.get(a) for a in env.agents):
                ended[k] = True
                _reset(env, name)
        report.seconds, report.steps, report.episodes = time.perf_counter() - begun, steps, int(ended.sum())
    return ended


def _reset(env: Any, name: str, seed: int | None = None) -> Mapping[str, Any]:
    with calling("reset"):
        result = env.reset() if seed is None else env.reset(seed=seed)
    observations, infos = values_in(result, "observations, infos", "reset", name)
    _check_dicts(f"reset() of {name}", observations=observations, infos=infos)
    if not env.agents:
        raise TesseraError(f"{name} has no agents after reset(), so nobody can act: set self.agents there")
    _check_observations(env, observations, f"reset() of {name}", env.agents)
    return observations


def _step(env: Any, name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    acting = list(env.agents)
    with calling("step"):
        result = env.step({agent: env.action_space(agent).sample() for agent in acting})
    observations, rewards, terminations, truncations, infos = values_in(result, STEP, "step", name)
    what = f"step() of {name}"
    _check_dicts(
        what,
        observations=observations,
        rewards=rewards,
        terminations=terminations,
        truncations=truncations,
        infos=infos,
    )
    going = [a for a in env.agents if not (terminations.get(a) or truncations.get(a))]
    _check_observations(env, observations, what, going)
    for agent, reward in rewards.items():
        check_reward(reward, f"{what}, for {agent},")
    for agent in terminations:
        check_flag(terminations[agent], "terminated", f"{what}, for {agent},")
    for agent in truncations:
        check_flag(truncations[agent], "truncated", f"{what}, for {agent},")
    return terminations, truncations


def _check_dicts(where: str, **given: Any) -> None:
    for what, value in given.items():
        if not isinstance(value, Mapping):
            raise TesseraError(
                f"{where} returns a {type(value).__name__} for {what}, and it must be a dict by agent: return one"
            )


def _check_observations(env: Any, observations: Mapping[str, Any], where: str, agents: list[str]) -> None:
    missing = [agent for agent in agents if agent not in observations]
    if missing:
        raise TesseraError(
            f"{where} returns no observation for {missing[0]}, which still acts: add it, or let it leave"
        )
    for agent in agents:
        check_observation(env.observation_space(agent), observations[agent], where, f"observation of {agent}")


def _arrays(observations: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Copies, because an environment may reuse its buffers; spaces of trees are compared by their text."""
    return {
        agent: np.array(x) if not isinstance(x, dict | tuple) else np.array(repr(x))
        for agent, x in observations.items()
    }
