"""Checks of open host environments, whatever their family: what the program gets from them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from tessera.envs.base import Box, Discrete, HostEnvironment, Timestep
from tessera.envs.checks.findings import EnvironmentCheck, raised, shown

OPEN = 2


def play_vector(env: HostEnvironment, report: EnvironmentCheck, steps: int, seed: int) -> np.ndarray:
    """Open a few environments, play random actions, and compare what comes with the spec; when episodes ended."""
    rounds, generator = max(1, steps // OPEN), np.random.default_rng(seed)
    method, ended = "open", np.zeros((rounds, OPEN), bool)
    try:
        vector = env.open(np.arange(OPEN).reshape(1, OPEN), seed)
        try:
            method = "reset"
            _check_timestep(env, report, vector.reset(), method)
            method = "step"
            begun = time.perf_counter()
            for k in range(rounds):
                timestep = vector.step(_random_actions(env, generator))
                _check_timestep(env, report, timestep, method)
                ended[k] = (timestep.terminated | timestep.truncated)[0]
                if report.errors:
                    break
            seconds = time.perf_counter() - begun
        finally:
            vector.close()
    except Exception as error:
        report.error(raised(env.name, method, error))
        return ended
    if not report.steps:  # not counted by a check of single environments
        report.seconds, report.steps, report.episodes = seconds, rounds * OPEN, int(ended.sum())
    return ended


def _check_timestep(env: HostEnvironment, report: EnvironmentCheck, timestep: Timestep, method: str) -> None:
    agents = (env.spec.agents,) if env.spec.agents else ()
    wanted: dict[str, tuple[Any, Any]] = {
        "observation": (env.spec.observation_shape, env.spec.observation_dtype),
        "final": (env.spec.observation_shape, env.spec.observation_dtype),
        "reward": (agents, np.float32),
        "terminated": ((), bool),
        "truncated": ((), bool),
    }
    for field, (shape, dtype) in wanted.items():
        value = getattr(timestep, field)
        if isinstance(value, dict | tuple):
            continue
        array = np.asarray(value)
        if array.shape != (1, OPEN, *shape) or array.dtype != np.dtype(dtype):
            report.error(
                f"{method}() of {env.name} gives {field} as {shown(array.shape, array.dtype)} for [1, {OPEN}] "
                f"environments, and its spec says {shown((1, OPEN, *shape), dtype)}: change one of them"
            )
        elif not np.isfinite(np.asarray(array, np.float64)).all():
            report.error(f"{method}() of {env.name} gives {field} with numbers that are not finite: mend them")


def _random_actions(env: HostEnvironment, generator: np.random.Generator) -> Any:
    actions = env.spec.actions
    lead = (1, OPEN, env.spec.agents) if env.spec.agents else (1, OPEN)
    if isinstance(actions, Box):
        low, high = (np.clip(bound, -1e3, 1e3) for bound in actions.bounds())
        return generator.uniform(low, high, (*lead, *actions.shape)).astype(np.float32)
    if isinstance(actions, Discrete):
        return generator.integers(actions.n, size=lead, dtype=np.int32)
    return generator.integers(np.asarray(actions.choices), size=(*lead, len(actions.choices)), dtype=np.int32)
