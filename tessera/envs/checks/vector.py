"""Checks of open host environments, whatever their family: what the program gets from them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from tessera.envs.base import Box, Discrete, HostEnvironment, Timestep, map_arrays
from tessera.envs.checks.findings import EnvironmentCheck, raised, shown
from tessera.errors import RAISED_BY_USERS

OPEN = 2


def play_vector(env: HostEnvironment, report: EnvironmentCheck, steps: int, seed: int) -> np.ndarray:
    """Open a few environments, play random actions, and compare what comes with the spec; when episodes ended."""
    rounds, generator = max(1, steps // OPEN), np.random.default_rng(seed)
    method, ended = "open", np.zeros((rounds, OPEN), bool)
    try:
        vector = env.open(np.arange(OPEN).reshape(1, OPEN), seed)
        try:
            method = "reset"
            timestep = vector.reset()
            _check_timestep(env, report, timestep, method)
            method = "step"
            begun = time.perf_counter()
            for k in range(rounds):
                timestep = vector.step(_random_actions(env, generator, timestep.legal))
                _check_timestep(env, report, timestep, method)
                ended[k] = (timestep.terminated | timestep.truncated)[0]
                if report.errors:
                    break
            seconds = time.perf_counter() - begun
        finally:
            vector.close()
    except RAISED_BY_USERS as error:
        report.error(raised(env.name, method, error))
        return ended
    if not report.steps:  # not counted by a check of single environments
        report.seconds, report.steps, report.episodes = seconds, rounds * OPEN, int(ended.sum())
    return ended


def seconds_of_a_step(env: HostEnvironment, seconds: float) -> float:
    """How long one environment takes for a step, by playing for a moment; 0 if it fails, which a run will tell."""
    generator, played = np.random.default_rng(0), 0
    try:
        vector = env.open(np.arange(OPEN).reshape(1, OPEN), 0)
        try:
            timestep = vector.reset()
            begun = time.perf_counter()
            while not played or time.perf_counter() - begun < seconds:
                timestep = vector.step(_random_actions(env, generator, timestep.legal))
                played += OPEN
            return (time.perf_counter() - begun) / played
        finally:
            vector.close()
    except RAISED_BY_USERS:
        return 0.0


def _check_timestep(env: HostEnvironment, report: EnvironmentCheck, timestep: Timestep, method: str) -> None:
    values: dict[str, tuple[Any, Any, Any]] = {"reward": (timestep.reward, env.spec.reward_shape, np.float32)}
    if env.spec.players > 1:
        values |= {field: (getattr(timestep, field), (), np.int32) for field in ("player", "final_player")}
    values |= {field: (getattr(timestep, field), (), bool) for field in ("terminated", "truncated")}
    for field in ("observation", "final"):
        leaves: list[Any] = []
        map_arrays(lambda *both, to=leaves: to.append(both), env.spec.observation, getattr(timestep, field))
        named = {f"{field} ({k})" if len(leaves) > 1 else field: both for k, both in enumerate(leaves)}
        values |= {name: (x, part.shape, part.dtype) for name, (part, x) in named.items()}
    for field, (value, shape, dtype) in values.items():
        array = np.asarray(value)
        if array.shape != (1, OPEN, *shape) or array.dtype != np.dtype(dtype):
            report.error(
                f"{method}() of {env.name} gives {field} as {shown(array.shape, array.dtype)} for [1, {OPEN}] "
                f"environments, and its spec says {shown((1, OPEN, *shape), dtype)}: change one of them"
            )
        elif not np.isfinite(np.asarray(array, np.float64)).all():
            report.error(f"{method}() of {env.name} gives {field} with numbers that are not finite: mend them")


def _random_actions(env: HostEnvironment, generator: np.random.Generator, legal: np.ndarray | None) -> Any:
    """Any actions, or any that are allowed."""
    actions = env.spec.actions
    lead = (1, OPEN, env.spec.agents) if env.spec.agents else (1, OPEN)
    if isinstance(actions, Box):
        low, high = (np.clip(bound, -1e3, 1e3) for bound in actions.bounds())
        return generator.uniform(low, high, (*lead, *actions.shape)).astype(np.float32)
    if legal is not None:
        sizes = (actions.n,) if isinstance(actions, Discrete) else actions.choices
        parts = np.split(np.where(legal, generator.random(legal.shape), -1.0), np.cumsum(sizes)[:-1], axis=-1)
        drawn = np.stack([part.argmax(-1) for part in parts], axis=-1).astype(np.int32)
        return drawn[..., 0] if isinstance(actions, Discrete) else drawn
    if isinstance(actions, Discrete):
        return generator.integers(actions.n, size=lead, dtype=np.int32)
    return generator.integers(np.asarray(actions.choices), size=(*lead, len(actions.choices)), dtype=np.int32)
