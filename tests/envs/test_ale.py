from __future__ import annotations

import numpy as np
import pytest
from test_gymnasium import play

from tessera import envs
from tessera.envs import Timestep
from tessera.errors import TesseraError

pytest.importorskip("ale_py")


def idle(env: envs.HostEnvironment, steps: int, action: int = 0) -> tuple[np.ndarray, Timestep]:
    vector = env.open(np.arange(2).reshape(1, 2), 0)
    first = vector.reset().observation
    timesteps = [vector.step(np.full((1, 2), action, np.int32)) for _ in range(steps)]
    vector.close()
    return first, Timestep._make(None if x[0] is None else np.stack(x) for x in zip(*timesteps, strict=True))


def assert_new_stack(observation: np.ndarray) -> None:
    """A first observation: three empty frames, then the game's picture."""
    assert observation.shape[1:] == (4, 84, 84)
    assert not observation[:, :3].any()
    assert observation[:, 3].any(axis=(1, 2)).all()


def test_losing_a_life_terminates_and_final_is_the_last_of_the_old_frames():
    env = envs.make("ale:breakout", episodic_life=True, noop_max=0)
    assert not env.masks
    assert (env.spec.observation_shape, env.spec.observation_dtype) == ((4, 84, 84), "uint8")
    first, steps = idle(env, 60)
    assert steps.terminated.any(axis=0).all()
    assert not steps.truncated.any()
    befores = np.concatenate([first[None], steps.observation[:-1]])
    np.testing.assert_array_equal(steps.final[..., :3, :, :], befores[..., 1:, :, :])
    assert_new_stack(steps.observation[steps.terminated])
    assert_new_stack(first[0])
    going_on = ~steps.terminated
    np.testing.assert_array_equal(steps.observation[going_on], steps.final[going_on])
    assert steps.valid is None


def test_the_frame_limit_truncates_and_does_not_terminate():
    env = envs.make("ale:pong", max_num_frames_per_episode=40, noop_max=0)
    first, steps = idle(env, 25)
    assert not steps.terminated.any()
    np.testing.assert_array_equal(np.flatnonzero(steps.truncated[:, 0, 0]), [9, 19])
    befores = np.concatenate([first[None], steps.observation[:-1]])
    np.testing.assert_array_equal(steps.final[..., :3, :, :], befores[..., 1:, :, :])
    assert_new_stack(steps.observation[steps.truncated])


def test_what_a_group_lives_through_does_not_depend_on_the_groups_beside_it():
    env = envs.make("ale:breakout", episodic_life=True)
    both, alone = play(env, [[0, 1], [2, 3]], 40, choices=4), play(env, [[2, 3]], 40, choices=4)
    for left, right in zip(both, alone, strict=True):
        np.testing.assert_array_equal(None if left is None else left[:, 1:], right)
    assert not np.array_equal(play(env, [[2, 3]], 40, seed=1, choices=4).observation, alone.observation)


def test_rewards_are_clipped_unless_asked_otherwise():
    _, clipped = idle(envs.make("ale:space_invaders", noop_max=0), 120, action=1)
    _, scored = idle(envs.make("ale:space_invaders", noop_max=0, reward_clipping=False), 120, action=1)
    assert clipped.reward.dtype == np.float32
    assert scored.reward.max() > 1
    np.testing.assert_array_equal(clipped.reward, np.sign(scored.reward))


def test_an_unknown_game_is_answered_with_the_nearest():
    with pytest.raises(TesseraError, match="unknown Atari game 'Pong': did you mean 'pong'"):
        envs.make("ale:Pong")


def test_colour_frames_are_refused():
    with pytest.raises(TesseraError, match="leave grayscale on"):
        envs.make("ale:pong", grayscale=False)
