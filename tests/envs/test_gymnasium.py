from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from scripted_envs import Counter, Echo, Reusing, register_counters

from tessera import envs
from tessera.envs import Box, Discrete, MultiDiscrete, Timestep
from tessera.errors import TesseraError

register_counters()

SAME_STEP = {
    "observation": [1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32, 40],
    "final": [1, 2, 3, 11, 12, 13, 21, 22, 23, 31, 32, 33],
    "reward": [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3],
    "ended": [0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1],
    "valid": None,
}
NEXT_STEP = {
    "observation": [1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23, 30],
    "final": [1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23, 30],
    "reward": [1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0],
    "ended": [0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0],
    "valid": [1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0],
}


def play(env: envs.HostEnvironment, ids: Any, steps: int, seed: int = 0, choices: int = 2) -> Timestep:
    """Every timestep after the first, stacked; actions depend on global index and step only."""
    ids = np.asarray(ids)
    vector = env.open(ids, seed)
    vector.reset()
    timesteps = [vector.step(((ids * 7 + t * 3 + t // 4) % choices).astype(np.int32)) for t in range(steps)]
    vector.close()
    return Timestep._make(None if x[0] is None else np.stack(x) for x in zip(*timesteps, strict=True))


def assert_counts(trace: Timestep, expected: dict[str, Any], ending: str) -> None:
    other = "truncated" if ending == "terminated" else "terminated"
    for group in range(2):
        for member in range(2):
            np.testing.assert_array_equal(trace.observation[:, group, member, 0], expected["observation"])
            np.testing.assert_array_equal(trace.final[:, group, member, 0], expected["final"])
            np.testing.assert_array_equal(trace.reward[:, group, member], expected["reward"])
            np.testing.assert_array_equal(getattr(trace, ending)[:, group, member], expected["ended"])
            np.testing.assert_array_equal(getattr(trace, other)[:, group, member], np.zeros(12))
            if expected["valid"] is not None:
                np.testing.assert_array_equal(trace.valid[:, group, member], expected["valid"])
    assert (trace.valid is None) == (expected["valid"] is None)


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
@pytest.mark.parametrize(
    ("mode", "expected"),
    [(None, SAME_STEP), ("same_step", SAME_STEP), ("next_step", NEXT_STEP), ("disabled", SAME_STEP)],
)
def test_single_environments_give_the_golden_trace_in_each_autoreset_mode(mode, expected, ending):
    options = {} if mode is None else {"autoreset": mode}
    env = envs.make(Counter, ending=ending, **options)
    assert env.masks == (mode == "next_step")
    assert_counts(play(env, [[0, 1], [2, 3]], 12), expected, ending)


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
@pytest.mark.parametrize(
    ("mode", "expected"), [("SAME_STEP", SAME_STEP), ("NEXT_STEP", NEXT_STEP), ("DISABLED", SAME_STEP)]
)
def test_vector_versions_give_the_golden_trace_in_each_autoreset_mode(mode, expected, ending):
    env = envs.make(f"tessera/Counter{mode}-v0", ending=ending)
    assert env.masks == (mode == "NEXT_STEP")
    assert_counts(play(env, [[0, 1], [2, 3]], 12), expected, ending)


def test_asking_for_a_mode_that_the_vector_version_has_not_steps_one_by_one():
    env = envs.make("tessera/CounterNEXT_STEP-v0", autoreset="same_step")
    assert_counts(play(env, [[0, 1], [2, 3]], 12), SAME_STEP, "terminated")


def test_reset_earns_nothing_ends_nothing_and_is_valid():
    for name, masked in (("same_step", False), ("next_step", True)):
        first = envs.make(Counter, autoreset=name).open(np.arange(4).reshape(2, 2), 0).reset()
        assert first.observation.shape == (2, 2, 1)
        assert first.observation.dtype == np.float32
        np.testing.assert_array_equal(first.final, first.observation)
        assert not first.reward.any()
        assert not (first.terminated | first.truncated).any()
        assert first.valid.all() if masked else first.valid is None


@pytest.mark.parametrize("name", ["CartPole-v1", "CartPole-v1?autoreset=same_step"])
def test_the_first_reset_is_from_the_seed_and_later_ones_begin_new_episodes(name):
    env = envs.make(name)
    starts = []
    for _ in range(2):
        vector = env.open(np.arange(4).reshape(2, 2), 7)
        starts.append([vector.reset().observation for _ in range(3)])
        vector.close()
    np.testing.assert_array_equal(starts[0], starts[1])
    first, second, third = starts[0]
    assert (first != second).any()
    assert (second != third).any()


@pytest.mark.parametrize(
    ("name", "limit"), [("CartPole-v1", 500), ("gymnax:Pendulum-v1", 200), ("gymnax:CartPole-v1?hide=1,3", 500)]
)
def test_time_limits_are_in_the_spec(name, limit):
    assert envs.make(name).spec.time_limit == limit


def test_final_survives_an_environment_that_reuses_its_array():
    trace = play(envs.make(Reusing), [[0]], 12)
    np.testing.assert_array_equal(trace.final[:, 0, 0, 0], SAME_STEP["final"])


def test_cartpole_in_its_vector_version_masks_the_reset_step_after_each_end():
    env = envs.make("CartPole-v1", max_episode_steps=12)
    assert env.masks
    vector = env.open(np.arange(8).reshape(2, 4), 0)
    vector.reset()
    # Half of the environments push one way and fall, the others push to and fro until time is up.
    actions = [np.array([[1, t % 2] * 2] * 2, np.int32) for t in range(40)]
    steps = Timestep._make(np.stack(x) for x in zip(*map(vector.step, actions), strict=True))
    ended = steps.terminated | steps.truncated
    assert steps.terminated[:, :, ::2].any()
    assert steps.truncated[:, :, 1::2].any()
    assert not steps.terminated[:, :, 1::2].any()
    np.testing.assert_array_equal(steps.valid[1:], ~ended[:-1])
    np.testing.assert_array_equal(steps.reward, steps.valid)
    np.testing.assert_array_equal(steps.final, steps.observation)
    fallen = np.abs(steps.final[..., 2]) > 12 * 2 * np.pi / 360
    np.testing.assert_array_equal(fallen, steps.terminated)
    assert (np.abs(steps.observation[~steps.valid]) <= 0.05).all()
    np.testing.assert_array_equal(np.flatnonzero(steps.truncated[:, 0, 1]), [11, 24, 37])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"autoreset": "same_step"}),
        ("CartPole-v1", {"autoreset": "disabled"}),
    ],
)
def test_what_a_group_lives_through_does_not_depend_on_the_groups_beside_it(name, options):
    env = envs.make(name, **options)
    both, alone = play(env, [[0, 1], [2, 3]], 60), play(env, [[2, 3]], 60)
    for left, right in zip(both, alone, strict=True):
        np.testing.assert_array_equal(None if left is None else left[:, 1:], right)
    other_seed = play(env, [[2, 3]], 60, seed=1)
    assert not np.array_equal(other_seed.observation, alone.observation)


def test_arrays_that_were_returned_are_not_written_to_again():
    vector = envs.make("CartPole-v1", autoreset="next_step").open(np.arange(2).reshape(1, 2), 0)
    first = vector.reset()
    kept = first.observation.copy()
    for _ in range(3):
        vector.step(np.zeros((1, 2), np.int32))
    np.testing.assert_array_equal(first.observation, kept)
    assert first.observation.flags.c_contiguous


COMPOSITE = spaces.Dict(
    {
        "where": spaces.Box(-1, 1, (2, 2), np.float64),
        "which": spaces.Discrete(3, start=5),
        "many": spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)]),
    }
)


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_dict_and_tuple_observations_are_flattened_as_gymnasium_does(mode):
    env = envs.make(lambda: Echo(COMPOSITE, spaces.Discrete(2)), autoreset=mode)
    size = spaces.flatdim(COMPOSITE)
    assert env.spec.observation_shape == (size,)
    seen: list[Any] = []

    class Recording(Echo):
        def step(self, action):
            result = super().step(action)
            seen.append(spaces.flatten(COMPOSITE, result[0]))
            return result

    vector = envs.make(lambda: Recording(COMPOSITE, spaces.Discrete(2)), autoreset=mode).open(np.array([[0, 1]]), 0)
    vector.reset()
    observation = vector.step(np.zeros((1, 2), np.int32)).observation
    assert observation.dtype == np.float32
    np.testing.assert_allclose(observation[0], np.stack(seen), rtol=1e-6)


def test_discrete_observations_become_one_hot():
    env = envs.make(lambda: Echo(spaces.Discrete(4, start=2), spaces.Discrete(2)))
    assert env.spec.observation_shape == (4,)
    first = env.open(np.array([[0, 1, 2]]), 0).reset().observation
    np.testing.assert_array_equal(first.sum(-1), np.ones((1, 3)))
    assert first.dtype == np.float32


@pytest.mark.parametrize(
    ("space", "shape", "dtype"),
    [
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), (8, 8, 3), np.uint8),
        (spaces.Box(0, 255, (4, 9, 8), np.uint8), (4, 9, 8), np.uint8),
        (spaces.Box(-1, 1, (2, 3), np.float64), (2, 3), np.float32),
        (spaces.Box(-1, 1, (), np.float32), (1,), np.float32),
        (spaces.MultiDiscrete([3, 4]), (2,), np.float32),
        (spaces.MultiBinary([2, 2]), (4,), np.float32),
    ],
)
def test_observations_have_the_shape_and_dtype_that_the_spec_says(space, shape, dtype):
    env = envs.make(lambda: Echo(space, spaces.Discrete(2)))
    assert (env.spec.observation_shape, env.spec.observation_dtype) == (shape, np.dtype(dtype).name)
    vector = env.open(np.arange(4).reshape(2, 2), 0)
    for timestep in (vector.reset(), vector.step(np.zeros((2, 2), np.int32))):
        assert timestep.observation.shape == (2, 2, *shape)
        assert timestep.observation.dtype == dtype
        assert timestep.observation.flags.c_contiguous


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
@pytest.mark.parametrize(
    ("space", "known", "sent", "received"),
    [
        (spaces.Discrete(3, start=-1), Discrete(3), [0, 2], [-1, 1]),
        (spaces.MultiDiscrete([2, 3]), MultiDiscrete((2, 3)), [[0, 2], [1, 1]], [[0, 2], [1, 1]]),
        (
            spaces.MultiDiscrete([2, 3], start=[1, 1]),
            MultiDiscrete((2, 3)),
            [[0, 2], [1, 1]],
            [[1, 3], [2, 2]],
        ),
        (
            spaces.MultiBinary([2, 2]),
            MultiDiscrete((2, 2, 2, 2)),
            [[0, 1, 1, 0], [1, 1, 0, 0]],
            [[[0, 1], [1, 0]], [[1, 1], [0, 0]]],
        ),
        (
            spaces.Box(np.float64(-2), 2, (2, 1), np.float64),
            Box((2, 1), (-2.0, -2.0), (2.0, 2.0)),
            [[[0.5], [1.0]], [[-1.0], [2.0]]],
            [[[0.5], [1.0]], [[-1.0], [2.0]]],
        ),
    ],
)
def test_actions_reach_the_environment_as_its_space_has_them(space, known, sent, received, mode):
    made: list[Echo] = []
    env = envs.make(lambda: made.append(Echo(spaces.Box(-1, 1, (1,)), space)) or made[-1], autoreset=mode)
    assert env.spec.actions == known
    vector = env.open(np.array([[0, 1]]), 0)
    vector.reset()
    vector.step(np.array([sent], np.float32 if isinstance(known, Box) else np.int32))
    for environment, expected in zip(made[-2:], received, strict=True):
        np.testing.assert_array_equal(environment.seen[0], expected)


def test_spaces_that_no_network_takes_are_refused_with_advice():
    with pytest.raises(TesseraError, match=r"observes Text.*wrap the environment"):
        envs.make(lambda: Echo(spaces.Text(3), spaces.Discrete(2)))
    with pytest.raises(TesseraError, match=r"takes actions Text.*wrap the environment"):
        envs.make(lambda: Echo(spaces.Discrete(2), spaces.Text(3)))


def test_an_id_may_name_the_module_that_registers_it():
    assert envs.make("gymnasium:gymnasium:Pendulum-v1").spec.actions == Box((1,), (-2.0,), (2.0,))
    assert gymnasium.spec("Pendulum-v1").vector_entry_point is None


def test_unknown_ids_and_modes_are_answered_with_the_nearest():
    with pytest.raises(TesseraError, match="unknown Gymnasium environment 'CartPoole-v1': did you mean 'CartPole-v1'"):
        envs.make("CartPoole-v1")
    with pytest.raises(TesseraError, match="did you mean 'CartPole-v1'"):
        envs.make("gymnasium:CartPole")
    with pytest.raises(TesseraError, match="did you mean 'same_step'"):
        envs.make("Pendulum-v1", autoreset="samestep")


def test_mujoco_warns_through_python_and_deprecations_are_not_shown(tmp_path):
    code = (
        "import warnings, mujoco, tessera.envs as envs; envs.make('HalfCheetah-v5'); envs.make('HalfCheetah-v5')\n"
        "warnings.simplefilter('always'); mujoco.get_mju_user_warning()('too fast')\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert "settotalmass" not in found.stdout + found.stderr
    assert "RuntimeWarning: MuJoCo: too fast" in found.stderr
    assert not list(tmp_path.iterdir())
