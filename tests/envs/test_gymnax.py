from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tessera import envs
from tessera.envs.gymnax import GymnaxEnvironment, import_gymnax
from tessera.errors import TesseraError

gymnax = import_gymnax()
NAMES = [name for name in gymnax.registered_envs if not name.startswith("MNIST")]  # which downloads its data


def rollout(env: Any, actions: Any, seed: int = 0) -> tuple[Any, Any, Any, Any, Any]:
    """Play as the framework does: (observation, reward, terminated, truncated, final), each [T, N, ...]."""
    steps, n = actions.shape[:2]

    def one(state: Any, inputs: Any) -> tuple[Any, Any]:
        action, key = inputs
        step_key, restart_key = jax.random.split(key)
        state, final, reward, terminated, truncated = env.step(state, action, step_key)
        fresh = env.restart(state, restart_key)
        ended = terminated | truncated
        state, observation = jax.tree.map(lambda new, old: jnp.where(ended, new, old), fresh, (state, final))
        return state, (observation, reward, terminated, truncated, final)

    keys = jax.random.split(jax.random.key(seed), (steps + 1, n))
    state, _ = jax.vmap(env.reset)(keys[0])
    _, out = jax.jit(lambda *a: jax.lax.scan(lambda s, x: jax.vmap(one)(s, x), *a))(state, (actions, keys[1:]))
    return jax.tree.map(np.asarray, out)


def zero_action(env: Any) -> Any:
    actions = env.spec.actions
    return jnp.zeros((), jnp.int32) if isinstance(actions, envs.Discrete) else jnp.zeros(actions.shape, jnp.float32)


def test_cartpole_terminates_out_of_bounds_and_truncates_at_its_limit():
    env = envs.make("gymnax:CartPole-v1", max_steps_in_episode=12)
    pushes = np.stack([np.ones(40), np.arange(40) % 2], axis=1).astype(np.int32)
    observation, reward, terminated, truncated, final = rollout(env, pushes)
    np.testing.assert_array_equal(terminated, np.abs(final[..., 2]) > 12 * 2 * np.pi / 360)
    assert terminated[:, 0].sum() >= 3
    assert not truncated[:, 0].any()
    assert not terminated[:, 1].any()
    np.testing.assert_array_equal(np.flatnonzero(truncated[:, 1]), [11, 23, 35])
    ended = terminated | truncated
    assert (np.abs(observation[ended]) <= 0.05).all()
    np.testing.assert_array_equal(observation[~ended], final[~ended])
    np.testing.assert_array_equal(reward, np.ones((40, 2), np.float32))


@pytest.mark.parametrize("name", NAMES)
def test_a_step_keeps_the_shapes_and_dtypes_of_a_reset(name):
    env = envs.make(f"gymnax:{name}")
    key = jax.random.key(0)
    state, observation = jax.eval_shape(env.reset, key)
    stepped, seen, reward, terminated, truncated = jax.eval_shape(env.step, state, zero_action(env), key)
    restarted, _ = jax.eval_shape(env.restart, stepped, key)
    assert stepped == state == restarted
    assert not any(leaf.weak_type for leaf in jax.tree.leaves((state, stepped)))
    assert (seen.shape, seen.dtype) == (observation.shape, jnp.float32) == (env.spec.observation_shape, jnp.float32)
    assert (reward.shape, reward.dtype) == ((), jnp.float32)
    assert (terminated.dtype, truncated.dtype) == (bool, bool)


def test_rewards_are_float64_and_observations_float32_when_x64_is_on():
    with jax.enable_x64(True):
        env = envs.make("gymnax:CartPole-v1", precision="f64")
        key = jax.random.key(0)
        state, observation = env.reset(key)
        stepped, seen, reward, _, _ = env.step(state, jnp.zeros((), jnp.int32), key)
        assert reward.dtype == jnp.float64
        assert observation.dtype == seen.dtype == jnp.float32
        assert [x.dtype for x in jax.tree.leaves(state)] == [x.dtype for x in jax.tree.leaves(stepped)]


def test_discrete_observations_become_one_hot():
    env = envs.make("gymnax:FrozenLake-misc")
    _, observation = env.reset(jax.random.key(0))
    np.testing.assert_array_equal(observation, np.eye(16, dtype=np.float32)[0])


def test_dict_observations_become_one_vector():
    spaces = gymnax.environments.spaces

    class Composite:
        def observation_space(self, params):
            return spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Box(-1, 1, (2, 2))})

        def action_space(self, params):
            return spaces.Box(jnp.array([-1.0, -2.0]), 3.0, (2,))

        def reset_env(self, key, params):
            return {"a": jnp.arange(4.0).reshape(2, 2), "b": jnp.array(1)}, {"time": 0}

    env = GymnaxEnvironment("composite", Composite(), None)
    assert env.spec.actions == envs.Box((2,), (-1.0, -2.0), (3.0, 3.0))
    np.testing.assert_array_equal(env.reset(jax.random.key(0))[1], [0, 1, 0, 0, 1, 2, 3])


def test_box_actions_have_their_bounds():
    assert envs.make("gymnax:Pendulum-v1").spec.actions == envs.Box((1,), (-2.0,), (2.0,))


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(TesseraError, match="unknown gymnax environment 'CartPole-v0': did you mean 'CartPole-v1'"):
        envs.make("gymnax:CartPole-v0")


def test_gymnax_is_imported_without_its_drawing_libraries_and_they_work_afterwards():
    code = """
import sys
from tessera import envs
envs.make("gymnax:CartPole-v1")
assert not {"seaborn", "pandas", "scipy.stats", "matplotlib.pyplot"} & set(sys.modules)
from gymnax.environments.bsuite import catch
import matplotlib.pyplot as plt, matplotlib, seaborn
assert catch.plt.subplots is plt.subplots and matplotlib.pyplot is plt and seaborn.color_palette
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_process_that_is_sent_an_environment_imports_none_of_them_either():
    sent = pickle.dumps(envs.make("gymnax:CartPole-v1"))
    code = f"""
import pickle, sys
env = pickle.loads({sent!r})
assert "gymnax" in sys.modules and env.name == "gymnax:CartPole-v1"
assert not {{"seaborn", "pandas", "scipy.stats", "matplotlib.pyplot"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
