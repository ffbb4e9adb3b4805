from __future__ import annotations

import numpy as np
import pytest
from test_gymnasium import play

from tessera import envs
from tessera.envs import Timestep
from tessera.errors import TesseraError

pytest.importorskip("envpool")


def next_state(state: np.ndarray, action: np.ndarray) -> np.ndarray:
    """CartPole's own rule, as Gymnasium has it."""
    x, x_dot, theta, theta_dot = np.moveaxis(state.astype(np.float64), -1, 0)
    push = (np.where(action == 1, 10.0, -10.0) + 0.05 * theta_dot**2 * np.sin(theta)) / 1.1
    spin = (9.8 * np.sin(theta) - np.cos(theta) * push) / (0.5 * (4.0 / 3.0 - 0.1 * np.cos(theta) ** 2 / 1.1))
    pull = push - 0.05 * spin * np.cos(theta) / 1.1
    return np.stack([x + 0.02 * x_dot, x_dot + 0.02 * pull, theta + 0.02 * theta_dot, theta_dot + 0.02 * spin], -1)


def test_cartpole_masks_the_reset_step_after_terminations_and_truncations():
    env = envs.make("envpool:CartPole-v1", max_episode_steps=12)
    assert env.masks
    vector = env.open(np.arange(8).reshape(2, 4), 0)
    before = vector.reset().observation
    # Half of the environments push one way and fall, the others push to and fro until time is up.
    actions = np.stack([np.array([[1, t % 2] * 2] * 2, np.int32) for t in range(40)])
    steps = Timestep._make(np.stack(x) for x in zip(*map(vector.step, actions), strict=True))
    vector.close()
    ended = steps.terminated | steps.truncated
    fallen = np.abs(steps.final[..., 2]) > 12 * 2 * np.pi / 360
    np.testing.assert_array_equal(fallen, steps.terminated)
    assert steps.terminated[:, :, ::2].any()
    assert not steps.truncated[:, :, ::2].any()
    assert not steps.terminated[:, :, 1::2].any()
    np.testing.assert_array_equal(np.flatnonzero(steps.truncated[:, 0, 1]), [11, 24, 37])
    assert steps.valid[0].all()
    np.testing.assert_array_equal(steps.valid[1:], ~ended[:-1])
    np.testing.assert_array_equal(steps.reward, steps.valid)
    np.testing.assert_array_equal(steps.final, steps.observation)
    assert (np.abs(steps.observation[~steps.valid]) <= 0.05).all()
    befores = np.concatenate([before[None], steps.observation[:-1]])
    played = next_state(befores, actions)
    np.testing.assert_allclose(played[steps.valid], steps.final[steps.valid], atol=1e-5)


def test_what_a_group_lives_through_does_not_depend_on_the_groups_beside_it():
    env = envs.make("envpool:CartPole-v1")
    both, alone = play(env, [[0, 1], [2, 3]], 60), play(env, [[2, 3]], 60)
    for left, right in zip(both, alone, strict=True):
        np.testing.assert_array_equal(None if left is None else left[:, 1:], right)
    assert not np.array_equal(play(env, [[2, 3]], 60, seed=1).observation, alone.observation)


def test_discrete_observations_and_box_actions_are_known():
    lake = envs.make("envpool:FrozenLake-v1")
    assert lake.spec.observation_shape == (16,)
    np.testing.assert_array_equal(lake.open(np.array([[0]]), 0).reset().observation[0, 0], np.eye(16)[0])
    pendulum = envs.make("envpool:Pendulum-v1")
    assert pendulum.spec.actions == envs.Box((1,), (-2.0,), (2.0,))
    vector = pendulum.open(np.arange(4).reshape(2, 2), 0)
    vector.reset()
    assert vector.step(np.ones((2, 2, 1), np.float32)).observation.shape == (2, 2, 3)


def test_an_unknown_task_is_answered_with_the_nearest():
    with pytest.raises(TesseraError, match="unknown EnvPool environment 'CartPole-v9': did you mean 'CartPole"):
        envs.make("envpool:CartPole-v9")


def test_a_vector_may_be_closed_twice():
    vector = envs.make("envpool:CartPole-v1").open(np.array([[0]]), 0)
    vector.close()
    vector.close()
