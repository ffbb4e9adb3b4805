"""Truncation is not termination: a task that pays 1 per step and never terminates is worth 1 / (1 - gamma)."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest

import tessera
from tessera import policies
from tessera.api import train
from tessera.envs import make
from tessera.program.training_program import published

LENGTH = 5
GAMMA = 0.9
ENDLESS = np.full(LENGTH, 1 / (1 - GAMMA))
"""What each observation is worth if episodes are only ever cut short."""
FINITE = np.asarray([(1 - GAMMA ** (LENGTH - t)) / (1 - GAMMA) for t in range(LENGTH)])
"""What each is worth if the fifth step is truly the last."""

# The step's number modulo LENGTH is what is seen, so that the final observation is the one that episodes begin with,
# and a reset step that is learned from (reward 0 there) spoils the value of that observation.
OBSERVATIONS = np.eye(LENGTH, dtype=np.float32)


class DeviceTask(tessera.DeviceEnvironment):
    """Pays 1 per step; every fifth step ends the episode."""

    name = "device-task"
    spec = tessera.Spec((LENGTH,), "float32", tessera.Discrete(2))

    def __init__(self, ending: str = "truncated") -> None:
        self.ending = ending

    def reset(self, key: Any) -> tuple[Any, Any]:
        return jnp.int32(0), jnp.asarray(OBSERVATIONS)[0]

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, ...]:
        state = state + 1
        over, never = state == LENGTH, jnp.zeros((), bool)
        ends = (over, never) if self.ending == "terminated" else (never, over)
        return state, jnp.asarray(OBSERVATIONS)[state % LENGTH], jnp.ones(()), *ends


class HostTask(gymnasium.Env):
    """The same as a Gymnasium environment."""

    observation_space = gymnasium.spaces.Box(0, 1, (LENGTH,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, ending: str = "truncated") -> None:
        self.ending = ending

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        self.now = 0
        return OBSERVATIONS[0].copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.now += 1
        over = self.now == LENGTH
        ends = (over and self.ending == "terminated", over and self.ending == "truncated")
        return OBSERVATIONS[self.now % LENGTH].copy(), 1.0, *ends, {}


# An unroll is no multiple of the length, so that ends fall anywhere in it.
SMALL = {"gamma": GAMMA, "unroll": 7, "widths": (16,)}
ALGORITHMS = {
    "ppo": (tessera.PPO(**SMALL, learning_rate=0.02, epochs=4, minibatches=1, max_gradient_norm=0.0), 8_000),
    "a2c": (tessera.A2C(**SMALL, learning_rate=0.02, max_gradient_norm=0.0), 24_000),
    "dqn": (tessera.DQN(**SMALL, learning_rate=0.01, batch=64, warmup=4, capacity=2_000, target_period=10), 10_000),
}


def learned(algorithm: str, env: Any) -> np.ndarray:
    """Train, and give the value of each observation, [LENGTH] or, for Q-values, [LENGTH, actions]."""
    chosen, steps = ALGORITHMS[algorithm]
    one_device = policies.get("fused", devices=1)
    result = train(chosen, env, one_device, steps=steps, envs=8, seed=1, eval_episodes=1, quiet=True)
    assert result.summary["eval_return_mean"] == LENGTH
    view = published(result.state)
    method = None if algorithm == "dqn" else "value"
    return np.asarray(result.algorithm.model.apply(view.params, OBSERVATIONS, method=method))


FAST = {("device", "ppo"), ("next_step", "a2c"), ("next_step", "dqn"), ("same_step", "ppo"), ("disabled", "ppo")}
"""Every mode and every algorithm; the other pairs are slow tests, for the compile time they cost."""


def pairs(*modes: str) -> list[Any]:
    """Every algorithm with each of the modes."""
    every = [(mode, algorithm) for mode in modes for algorithm in ALGORITHMS]
    return [pytest.param(*pair, marks=() if pair in FAST else pytest.mark.slow) for pair in every]


def check(values: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(values.T, np.broadcast_to(expected, values.T.shape), atol=0.3)


@pytest.mark.parametrize(("mode", "algorithm"), pairs("device"))
def test_a_device_task_that_is_only_truncated_is_worth_ten(mode: str, algorithm: str) -> None:
    check(learned(algorithm, DeviceTask()), ENDLESS)


@pytest.mark.parametrize(("mode", "algorithm"), pairs("next_step", "same_step", "disabled"))
def test_a_gymnasium_task_that_is_only_truncated_is_worth_ten(mode: str, algorithm: str) -> None:
    check(learned(algorithm, make(HostTask, autoreset=mode)), ENDLESS)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_a_terminated_device_task_is_worth_what_is_left_of_the_episode(algorithm: str) -> None:
    check(learned(algorithm, DeviceTask("terminated")), FINITE)


@pytest.mark.parametrize(("mode", "algorithm"), pairs("next_step", "same_step", "disabled"))
def test_a_terminated_gymnasium_task_is_worth_what_is_left_of_the_episode(mode: str, algorithm: str) -> None:
    check(learned(algorithm, make(HostTask, autoreset=mode, ending="terminated")), FINITE)
