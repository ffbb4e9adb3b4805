"""A number of an environment that is not finite is called that, with the environment and the step."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv

import tessera
from tessera.algorithms.contract import Transition
from tessera.envs.base import Box, DeviceEnvironment, Discrete, Spec
from tessera.errors import RunFailed
from tessera.program.faults import ACTION, NEXT_OBSERVATION, OBSERVATION, REWARD, Fault, find_fault, first_of_rounds

ENVS, UNROLL = 8, 4
A2C = tessera.A2C(unroll=UNROLL, widths=(8,))
DQN = tessera.DQN(unroll=UNROLL, widths=(8,), batch=8, warmup=2, capacity=512)


class Faulty(DeviceEnvironment):
    """Counts steps; the environment whose first number is highest gives one bad number in its step `at`."""

    name = "faulty"

    def __init__(self, what: str = "reward", at: int = 10, threshold: float = 0.0, continuous: bool = False) -> None:
        self.what, self.at, self.threshold = what, at, threshold
        self.spec = Spec((2,), "float32", Box((1,), (-1.0,), (1.0,)) if continuous else Discrete(2))

    def reset(self, key: Any) -> tuple[Any, Any]:
        mark = jax.random.uniform(key)
        return (jnp.int32(0), mark), jnp.stack([mark, jnp.float32(0)])

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, ...]:
        count, mark = state[0] + 1, state[1]
        bad = (count == self.at) & (mark > self.threshold)
        spoilt = jnp.where(bad, jnp.nan, 1.0)
        observation = jnp.stack([mark, 0.01 * count]) * (spoilt if self.what == "observation" else 1.0)
        reward = spoilt if self.what == "reward" else jnp.float32(1.0)
        if self.spec.actions != Discrete(2):
            reward = reward - jnp.square(action).sum()
        return (count, mark), observation, reward, bad & (self.what == "last"), count >= 50


class FaultyHost(CartPoleEnv):
    """A Gymnasium environment that gives a bad number in its tenth step, if it was seeded with an odd number."""

    what = "reward"

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.count, self.odd = 0, seed is not None and bool(seed % 2)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        observation, reward, _, _, info = super().step(action)
        self.count += 1
        if self.odd and self.count == 10:
            reward = float("inf") if self.what == "reward" else reward
            observation = observation * float("nan") if self.what == "observation" else observation
        return observation, reward, False, False, info


class FaultyHostObservation(FaultyHost):
    """The same with an observation."""

    what = "observation"


def message(algorithm: Any, env: Any, policy: str, engine: str = "serial") -> str:
    """Train until the run is stopped: the sentence."""
    options: dict[str, Any] = {"envs": ENVS, "steps": ENVS * UNROLL * 8, "engine": engine, "quiet": True}
    with pytest.raises(RunFailed) as caught:
        tessera.train(algorithm, env, policy, **options)
    return str(caught.value)


POLICIES = ["fused:devices=1", "single_learner_coarse:actors=2"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "env",
    [Faulty("reward"), Faulty("observation"), FaultyHost, FaultyHostObservation],
    ids=["device reward", "device observation", "host reward", "host observation"],
)
def test_a_bad_number_of_an_environment_is_named_with_its_environment_and_step(env: Any, policy: str) -> None:
    said = message(A2C, env, policy)
    what = "an observation" if "observation" in getattr(env, "what", "") else "a reward"
    found = re.match(rf"environment (\d) of \S+ gave {what} that is not finite in its step 10 \(update 3\)", said)
    assert found, said
    assert int(found[1]) < ENVS
    assert "learning rate" not in said


def test_the_same_environment_is_named_under_every_policy_and_engine() -> None:
    """Only one of eight is above the threshold."""
    env = Faulty("reward", threshold=0.9)
    said = {message(A2C, env, policy) for policy in (*POLICIES, "single_learner_fine")}
    said.add(message(A2C, env, POLICIES[1], "local"))
    assert len(said) == 1, said
    assert not said.pop().startswith("environment 0 ")


def test_a_bad_number_while_the_replay_is_filled_is_named_too() -> None:
    assert "in its step 7 (before the first update)" in message(DQN, Faulty("observation", at=7), POLICIES[0])


def test_the_first_observation_of_an_episode_and_the_last_are_looked_at() -> None:
    class BadStart(Faulty):
        def reset(self, key: Any) -> tuple[Any, Any]:
            state, observation = super().reset(key)
            return state, observation * jnp.nan

    assert "gave an observation that is not finite in its step 1 " in message(A2C, BadStart("none"), POLICIES[0])

    class BadEnd(Faulty):
        def step(self, state: Any, action: Any, key: Any) -> tuple[Any, ...]:
            state, observation, reward, over, limit = super().step(state, action, key)
            return state, jnp.where(over, jnp.nan, observation), reward, over, limit

    assert "gave an observation that is not finite in its step 10 " in message(A2C, BadEnd("last"), POLICIES[0])


def test_what_a_broken_network_does_to_an_environment_is_not_the_environments_fault() -> None:
    """Actions that are not finite make rewards that are not finite; the numbers of learning broke first."""
    said = message(
        tessera.A2C(unroll=UNROLL, widths=(8,), learning_rate=1e38), Faulty("none", continuous=True), POLICIES[0]
    )
    assert said.startswith(("metric", "gradient", "params")), said
    pendulum = message(tessera.A2C(unroll=UNROLL, widths=(8,), learning_rate=1e38), PendulumEnv, POLICIES[1])
    assert "learning rate" in pendulum


def trajectory(steps: int, **changes: Any) -> Transition:
    """Two groups of three environments, all zeros but for `changes`: part -> place and value."""
    values = {
        "observation": np.zeros((2, steps, 3, 5), np.float32),
        "action": np.zeros((2, steps, 3, 1), np.float32),
        "reward": np.zeros((2, steps, 3), np.float32),
        "next_observation": np.zeros((2, steps, 3, 5), np.float32),
    }
    for name, (place, value) in changes.items():
        values[name][place] = value
    flag = np.zeros((2, steps, 3), bool)
    return Transition(
        values["observation"], values["action"], (), values["reward"], flag, flag, values["next_observation"]
    )


IDS = jnp.arange(6, dtype=jnp.int32).reshape(2, 3) + 30


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (0, None, None)),
        ({"reward": ((1, 2, 1), np.nan)}, (3, REWARD, 34)),
        ({"observation": ((0, 3, 2, 4), np.inf)}, (4, OBSERVATION, 32)),
        ({"reward": ((1, 2, 1), np.nan), "observation": ((0, 2, 2, 0), -np.inf)}, (3, OBSERVATION, 32)),
        ({"action": ((0, 1, 0, 0), np.nan), "reward": ((0, 1, 0), np.nan)}, (2, ACTION, 30)),
        (
            {"next_observation": ((1, 0, 2, 1), np.nan), "observation": ((1, 1, 2, 1), np.nan)},
            (1, NEXT_OBSERVATION, 35),
        ),
    ],
)
def test_the_earliest_step_counts_and_within_it_the_part_that_comes_first(changes: Any, expected: Any) -> None:
    steps = trajectory(4, **changes)
    found = find_fault(steps, steps, IDS)
    assert int(found.step) == expected[0]
    if expected[0]:
        assert (int(found.part), int(found.env)) == expected[1:]


def test_observations_that_an_algorithm_does_not_keep_are_not_looked_at() -> None:
    steps = trajectory(4, observation=((0, 0, 0, 0), np.nan), reward=((1, 3, 0), np.nan))
    found = find_fault(steps, (), IDS)
    assert (int(found.step), int(found.part), int(found.env)) == (4, REWARD, 33)


def test_of_several_rounds_the_first_fault_counts() -> None:
    faults = Fault(jnp.array([0, 2, 1]), jnp.array([0, 2, 3]), jnp.array([0, 5, 6]))
    assert tuple(map(int, first_of_rounds(faults, 10))) == (12, 2, 5)
    assert int(first_of_rounds(faults._replace(step=jnp.zeros(3, jnp.int32)), 10).step) == 0
