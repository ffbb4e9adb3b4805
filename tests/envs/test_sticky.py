"""Sticky actions: repeated with the given probability, from the previous step, and never across episodes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tessera
from tessera import envs
from tessera.envs.base import DeviceEnvironment, Discrete, Spec
from tessera.errors import TesseraError


class Echo(DeviceEnvironment):
    """Shows the action that it was given."""

    name, spec = "echo", Spec((1,), "float32", Discrete(100))

    def reset(self, key):
        return jnp.int32(0), jnp.zeros(1)

    def step(self, state, action, key):
        return state + 1, jnp.float32(action)[None], jnp.float32(0), jnp.bool_(False), jnp.bool_(False)


def played(env: DeviceEnvironment, steps: int) -> np.ndarray:
    """What is played when 1, 2, 3, … is asked for."""

    def step(state, inputs):
        action, key = inputs
        state, observation, *_ = env.step(state, action, key)
        return state, observation[0]

    actions, keys = jnp.arange(1, steps + 1, dtype=jnp.int32), jax.random.split(jax.random.key(1), steps)
    return np.asarray(jax.lax.scan(step, env.reset(jax.random.key(0))[0], (actions, keys))[1])


def test_an_action_is_the_one_asked_for_or_the_one_before():
    asked = np.arange(1, 4001)
    given = played(envs.make(Echo, sticky=0.25), 4000)
    before = np.concatenate([[0], given[:-1]])
    stuck = given == before
    np.testing.assert_array_equal(given[~stuck], asked[~stuck])
    assert 0.22 < stuck.mean() < 0.28  # four standard deviations


def test_with_probability_0_nothing_sticks_and_a_new_episode_remembers_nothing():
    np.testing.assert_array_equal(played(envs.make(Echo, sticky=0.0), 10), np.arange(1, 11))
    env = envs.make(Echo, sticky=0.5)
    state = env.step(env.reset(jax.random.key(0))[0], jnp.int32(7), jax.random.key(1))[0]
    assert int(env.restart(state, jax.random.key(2))[0].memory) == 0


@pytest.mark.parametrize(("name", "words"), [("gymnax:CartPole-v1?sticky=1.5", "from 0 to below 1"),
                                             ("jaxmarl:MPE_simple_spread_v3?sticky=0.1", "for one agent")])  # fmt: skip
def test_what_makes_no_sense_is_refused(name, words):
    with pytest.raises(TesseraError, match=words):
        envs.make(name)


def test_it_trains_by_name():
    algorithm = tessera.A2C(unroll=8, widths=(8,))
    result = tessera.train(algorithm, "gymnax:CartPole-v1?sticky=0.1", "fused:devices=1", steps=512, envs=8, quiet=True)
    assert result.summary["env_steps"] == 512
