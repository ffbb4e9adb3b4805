from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_gymnax import rollout

from tessera import envs
from tessera.errors import TesseraError

brax_envs = pytest.importorskip("brax.envs")
from brax.envs.fast import Fast  # noqa: E402  (only once Brax is known to be there)


class Falls(Fast):
    """Brax's test environment, which ends when it has come far enough."""

    def step(self, state, action):
        state = super().step(state, action)
        return state.replace(done=jnp.where(state.obs[0] > 0.0035, 1.0, 0.0))


brax_envs.register_environment("falls", Falls)


def test_the_time_limit_truncates_and_never_terminates():
    env = envs.make("brax:fast", episode_length=5)
    observation, _, terminated, truncated, final = rollout(env, np.ones((12, 2, 1), np.float32))
    assert not terminated.any()
    np.testing.assert_array_equal(np.flatnonzero(truncated[:, 0]), [4, 9])
    np.testing.assert_array_equal(observation[4], np.zeros((2, 2)))
    assert (final[4] > 0).all()
    np.testing.assert_array_equal(final[:5], final[5:10])


def test_an_end_of_its_own_terminates_and_does_not_truncate():
    env = envs.make("brax:falls", episode_length=4)
    # Pushed, an environment passes the mark at its fourth step, which is also the limit; idle, it never does.
    actions = np.stack([np.ones((9, 1)), -np.ones((9, 1))], axis=1).astype(np.float32)
    _, _, terminated, truncated, final = rollout(env, actions)
    np.testing.assert_array_equal(terminated, final[..., 0] > 0.0035)
    np.testing.assert_array_equal(np.flatnonzero(terminated[:, 0]), [3, 7])
    assert not truncated[:, 0].any()
    np.testing.assert_array_equal(np.flatnonzero(truncated[:, 1]), [3, 7])


def test_restart_goes_back_to_the_first_observation():
    env = envs.make("brax:fast")
    state, first = env.reset(jax.random.key(0))
    for _ in range(3):
        state, *_ = env.step(state, jnp.ones(1), jax.random.key(1))
    again, observation = env.restart(state, jax.random.key(2))
    np.testing.assert_array_equal(observation, first)
    assert again.steps == 0


def test_a_step_keeps_the_shapes_and_dtypes_of_a_reset():
    env = envs.make("brax:inverted_pendulum")
    state, observation = jax.eval_shape(env.reset, jax.random.key(0))
    stepped, seen, reward, terminated, truncated = jax.eval_shape(env.step, state, jnp.zeros(1), None)
    assert stepped == state == jax.eval_shape(env.restart, stepped, None)[0]
    assert (seen.shape, seen.dtype) == (observation.shape, jnp.float32) == (env.spec.observation_shape, jnp.float32)
    assert (reward.dtype, terminated.dtype, truncated.dtype) == (jnp.float32, bool, bool)


def test_the_reward_of_repeated_actions_is_their_sum():
    once, twice = envs.make("brax:fast"), envs.make("brax:fast", action_repeat=2)
    state, _ = once.reset(jax.random.key(0))
    state, _, first, *_ = once.step(state, jnp.ones(1), None)
    _, _, second, *_ = once.step(state, jnp.ones(1), None)
    state, _ = twice.reset(jax.random.key(0))
    state, _, both, *_ = twice.step(state, jnp.ones(1), None)
    np.testing.assert_allclose(both, first + second)
    assert state.steps == 2


class Measured(Fast):
    """The same, with a metric of its own."""

    def reset(self, rng):
        return super().reset(rng).replace(metrics={"height": jnp.zeros(())})

    def step(self, state, action):
        state = super().step(state, action)
        return state.replace(metrics={"height": state.obs[0] + 1})


brax_envs.register_environment("measured", Measured)


def test_its_metrics_are_told_as_info():
    env = envs.make("brax:measured")
    state, _ = env.reset(jax.random.key(0))
    state, observation, *_ = env.step(state, jnp.ones(1), jax.random.key(1))
    assert env.info(state) == {"height": observation[0] + 1}


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(TesseraError, match="unknown Brax environment 'antt': did you mean 'ant'"):
        envs.make("brax:antt")
