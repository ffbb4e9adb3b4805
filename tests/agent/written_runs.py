"""Run folders that were written and not trained, with params that make actions vary; and worlds for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tessera import envs
from tessera.algorithms.contract import Algorithm, State
from tessera.envs.base import Box, DeviceEnvironment, Discrete, Spec
from tessera.maths.statistics import Moments
from tessera.program.initial import initial_state
from tessera.runs import directory
from tessera.runs.checkpoint import Checkpoints
from tessera.support.files import write_json


class Still(DeviceEnvironment):
    """A world in which nothing happens."""

    name = "py:written_runs.Still"
    spec = Spec((3,), "float32", Box((2,), (-0.5, -1.0), (0.5, 1.0)))

    def reset(self, key: Any) -> tuple[Any, Any]:
        return jnp.int32(0), jnp.zeros(self.spec.observation_shape, self.spec.observation_dtype)

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, Any, Any, Any, Any]:
        reward = jnp.zeros((self.spec.agents,) if self.spec.agents else ())
        return *self.reset(key), reward, jnp.zeros((), bool), jnp.zeros((), bool)


class Team(Still):
    """The same for three agents."""

    name = "py:written_runs.Team"
    spec = Spec((3, 2), "float32", Discrete(4), agents=3)


class Board(Still):
    """The same with a picture."""

    name = "py:written_runs.Board"
    spec = Spec((10, 10, 2), "float32", Discrete(4))


OWN = (Still.name, Team.name, Board.name)
"""Names to trust."""


def write_run(folder: Path, algorithm: Algorithm, env_name: str, updates: tuple[int, ...] = (3,)) -> Path:
    """Write a run folder with checkpoints, each with other params."""
    env = envs.make(env_name)
    bound = replace(algorithm.bind(env.spec), envs=8)
    config = {"algorithm": directory.algorithm_config(bound), "env": env_name, "policy": "fused", "engine": "serial"}
    config |= {"envs": 8, "groups": 8, "lag": 0, "seed": 0, "precision": "f32", "steps": 64}
    folder.mkdir(parents=True)
    write_json(folder / "config.json", config)
    checkpoints = Checkpoints(folder / "checkpoints")
    for update in updates:
        meta = {"algorithm": bound.name, "env": env_name, "meter": {"env_steps": 64}}
        checkpoints.save(update, {"state": varied(bound, update)}, meta)
    checkpoints.close()
    return folder


def varied(algorithm: Algorithm, seed: int) -> State:
    """A state half-way through a run, with random params, and moments that are neither 0 nor 1; nothing is compiled."""
    shapes = jax.eval_shape(lambda key: initial_state(algorithm, key, 1), jax.random.key(0))
    state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    random = np.random.default_rng(seed)

    def weights(x: np.ndarray) -> np.ndarray:
        return random.normal(0, 0.7 if x.ndim > 1 else 0.1, x.shape).astype(x.dtype)

    def moments(x: Moments) -> Moments:
        mean, m2 = random.normal(size=x.mean.shape), random.uniform(0.5, 4, x.mean.shape)
        return Moments(np.full_like(x.count, 9), mean.astype(x.mean.dtype), m2.astype(x.m2.dtype))

    return state._replace(
        params=jax.tree.map(weights, state.params),
        statistics=jax.tree.map(moments, state.statistics, is_leaf=lambda x: isinstance(x, Moments)),
        clock=state.clock._replace(applies=np.int32(50), horizon=np.full_like(state.clock.horizon, 100)),
    )
