from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tessera import envs
from tessera.envs import Box, Discrete, MultiDiscrete, Timestep
from tessera.errors import TesseraError

pytest.importorskip("pettingzoo")
from scripted_teams import LEAVING, Leavers

from tessera.envs.pettingzoo import PettingZooEnvironment

SPREAD = "pettingzoo:mpe2.simple_spread_v3"


def play(env: envs.HostEnvironment, ids: Any, steps: int, seed: int = 0, choices: int = 3) -> Timestep:
    """Every timestep after the first, stacked; actions depend on global index, agent and step only."""
    ids = np.asarray(ids)
    vector = env.open(ids, seed)
    vector.reset()
    agents = np.arange(env.spec.agents)
    timesteps = [
        vector.step(((ids[..., None] * 7 + t * 3 + agents * 2) % choices).astype(np.int32)) for t in range(steps)
    ]
    vector.close()
    return Timestep._make(None if x[0] is None else np.stack(x) for x in zip(*timesteps, strict=True))


def team(**options: Any) -> tuple[PettingZooEnvironment, list[Leavers]]:
    """The adapter of scripted agents, and the environments that it makes."""
    made: list[Leavers] = []
    env = PettingZooEnvironment("leavers", lambda: made.append(Leavers(**options)) or made[-1])
    return env, made


def test_agents_that_leave_give_the_golden_trace():
    env, _ = team()
    assert env.spec == envs.Spec((3, 1), "float32", Discrete(3), agents=3)
    first = env.open(np.arange(4).reshape(2, 2), 0).reset()
    np.testing.assert_array_equal(first.observation[1, 1, :, 0], [10, 20, 30])
    assert first.alive.all()
    trace = play(env, [[0, 1], [2, 3]], 6)
    for group, member in np.ndindex(2, 2):
        np.testing.assert_array_equal(
            trace.observation[:, group, member, :, 0],
            [[0, 21, 31], [0, 22, 32], [110, 120, 130], [0, 121, 131], [0, 122, 132], [210, 220, 230]],
        )
        np.testing.assert_array_equal(
            trace.final[:, group, member, :, 0],
            [[0, 21, 31], [0, 22, 32], [0, 23, 33], [0, 121, 131], [0, 122, 132], [0, 123, 133]],
        )
        np.testing.assert_array_equal(
            trace.reward[:, group, member], [[1, 2, 3], [0, 4, 6], [0, 6, 9], [1, 2, 3], [0, 4, 6], [0, 6, 9]]
        )
        np.testing.assert_array_equal(
            trace.alive[:, group, member], [[0, 1, 1], [0, 1, 1], [1, 1, 1], [0, 1, 1], [0, 1, 1], [1, 1, 1]]
        )
        np.testing.assert_array_equal(trace.terminated[:, group, member], [0, 0, 1, 0, 0, 1])
    assert not trace.truncated.any()
    assert trace.valid is None
    assert (trace.reward.dtype, trace.alive.dtype) == (np.float32, bool)


def test_reset_earns_nothing_and_ends_nothing():
    first = team()[0].open(np.arange(4).reshape(2, 2), 0).reset()
    assert (first.reward.shape, first.alive.shape) == ((2, 2, 3), (2, 2, 3))
    assert (first.terminated.shape, first.truncated.shape) == ((2, 2), (2, 2))
    assert not first.reward.any()
    assert not (first.terminated | first.truncated).any()
    np.testing.assert_array_equal(first.final, first.observation)


@pytest.mark.parametrize(
    ("endings", "truncated", "final"),
    [
        (("truncated", "terminated", "terminated"), False, [0, 23, 33]),
        (("terminated", "truncated", "truncated"), True, [0, 23, 33]),
        (("terminated", "terminated", "truncated"), True, [0, 0, 33]),
    ],
)
def test_an_episode_is_truncated_if_one_of_the_last_agents_was_and_then_who_was_terminated_is_gone(
    endings, truncated, final
):
    leaving = {agent: (step, how) for (agent, (step, _)), how in zip(LEAVING.items(), endings, strict=True)}
    trace = play(team(leaving=leaving)[0], [[0]], 3)
    np.testing.assert_array_equal(trace.truncated[:, 0, 0], [False, False, truncated])
    np.testing.assert_array_equal(trace.terminated[:, 0, 0], [False, False, not truncated])
    np.testing.assert_array_equal(trace.final[2, 0, 0, :, 0], final)


def test_agents_that_left_are_given_no_action_and_the_others_get_their_own():
    env, made = team(actions=(spaces.Discrete(3, start=5),) * 3)
    vector = env.open(np.array([[0]]), 0)
    vector.reset()
    for row in ([0, 1, 2], [1, 2, 0], [2, 0, 1], [2, 2, 2]):
        vector.step(np.array([[row]], np.int32))
    assert made[-1].seen == [
        {"ann": 5, "bob": 6, "cat": 7},
        {"bob": 7, "cat": 5},
        {"bob": 5, "cat": 6},
        {"ann": 7, "bob": 7, "cat": 7},
    ]


@pytest.mark.parametrize(
    ("space", "known", "sent"),
    [
        (spaces.Box(-2, 2, (2,), np.float64), Box((2,), (-2.0, -2.0), (2.0, 2.0)), [[0.5, 1], [-1, 2], [0, 0]]),
        (spaces.MultiDiscrete([2, 3]), MultiDiscrete((2, 3)), [[0, 2], [1, 1], [1, 0]]),
    ],
)
def test_actions_of_several_numbers_reach_each_agent(space, known, sent):
    env, made = team(actions=(space,) * 3)
    assert env.spec.actions == known
    vector = env.open(np.array([[0]]), 0)
    vector.reset()
    vector.step(np.array([[sent]], np.float32 if isinstance(known, Box) else np.int32))
    np.testing.assert_array_equal([made[-1].seen[0][agent] for agent in LEAVING], sent)


def test_shorter_observations_are_padded_with_zeros():
    env, _ = team(widths=(1, 3, 2))
    assert env.spec.observation_shape == (3, 3)
    first = env.open(np.array([[0]]), 0).reset().observation
    np.testing.assert_array_equal(first[0, 0], [[10, 0, 0], [20, 20, 20], [30, 30, 0]])
    assert envs.make("pettingzoo:mpe2.simple_tag_v3").spec.observation_shape == (4, 16)


def test_final_and_earlier_arrays_survive_an_environment_that_reuses_its_own():
    plain, reusing = (play(team(reuse=reuse)[0], [[0, 1]], 7) for reuse in (False, True))
    for left, right in zip(plain, reusing, strict=True):
        np.testing.assert_array_equal(left, right)
    vector = team(reuse=True)[0].open(np.array([[0]]), 0)
    first = vector.reset().observation
    vector.step(np.zeros((1, 1, 3), np.int32))
    np.testing.assert_array_equal(first[0, 0, :, 0], [10, 20, 30])


def test_the_cycle_limit_truncates_and_success_terminates():
    env = envs.make(SPREAD, max_cycles=4, terminate_on_success=True)
    vector = env.open(np.array([[0, 1]]), 0)
    vector.reset()
    world = vector._envs[1].unwrapped.world
    for t in range(4):
        if t == 2:
            for agent, landmark, place in zip(world.agents, world.landmarks, (-1.0, 0.0, 1.0), strict=True):
                agent.state.p_pos = landmark.state.p_pos = np.array([place, 0.0])
                agent.state.p_vel = np.zeros(2)
        timestep = vector.step(np.zeros((1, 2, 3), np.int32))
        np.testing.assert_array_equal(timestep.terminated, [[False, t == 2]])
        np.testing.assert_array_equal(timestep.truncated, [[t == 3, False]])
        assert timestep.alive.all()


def test_what_an_environment_lives_through_depends_on_the_seed_and_its_own_index():
    env = envs.make(SPREAD, max_cycles=4)
    both, alone = play(env, [[0, 1], [2, 3]], 6, choices=5), play(env, [[2, 3]], 6, choices=5)
    for left, right in zip(both, alone, strict=True):
        np.testing.assert_array_equal(None if left is None else left[:, 1:], right)
    assert not np.array_equal(play(env, [[2, 3]], 6, seed=1, choices=5).observation, alone.observation)
    assert not np.array_equal(both.observation[0, 0, 0], both.observation[0, 0, 1])


@pytest.mark.parametrize("continuous", [False, True])
def test_simple_spread_is_the_same_task_here_and_in_jaxmarl(continuous):
    pytest.importorskip("jaxmarl")
    import jax
    import jax.numpy as jnp

    ours = envs.make(SPREAD, continuous_actions=continuous)
    theirs = envs.make("jaxmarl:MPE_simple_spread_v3", action_type="Continuous" if continuous else "Discrete")
    assert ours.spec == theirs.spec
    draw = np.random.default_rng(0)
    close = 0.15  # in a heap, so that all collide
    places = np.stack([draw.uniform(-size, size, (6, 2)) for size in (close, 1.0, close, 1.0)])
    speeds = draw.normal(size=(4, 6, 2)) * (np.arange(6) < 3)[:, None]
    vector = ours.open(np.arange(4).reshape(1, 4), 0)
    vector.reset()
    for env, place, speed in zip(vector._envs, places, speeds, strict=True):
        for entity, at, by in zip(env.unwrapped.world.entities, place, speed, strict=True):
            entity.state.p_pos, entity.state.p_vel = at.copy(), by.copy()
    state, _ = jax.vmap(theirs.reset)(jax.random.split(jax.random.key(0), 4))
    state = state.replace(p_pos=jnp.asarray(places, jnp.float32), p_vel=jnp.asarray(speeds, jnp.float32))
    step = jax.jit(jax.vmap(theirs.step, in_axes=(0, 0, None)))
    collisions = np.zeros(4, int)
    for t in range(25):
        actions = draw.uniform(size=(4, 3, 5)).astype(np.float32) if continuous else draw.integers(0, 5, (4, 3))
        timestep = vector.step(actions[None])
        state, final, reward, terminated, truncated = step(state, jnp.asarray(actions), jax.random.key(t))
        np.testing.assert_allclose(timestep.final[0], final, atol=1e-4)
        np.testing.assert_allclose(timestep.reward[0], reward, atol=1e-4)
        np.testing.assert_array_equal(timestep.truncated[0], truncated)
        np.testing.assert_array_equal(timestep.truncated[0], np.full(4, t == 24))
        assert not terminated.any()
        assert not timestep.terminated.any()
        apart = np.linalg.norm(timestep.final[0, ..., 10:14].reshape(4, 6, 2), axis=-1)
        collisions += (apart < 0.3).any(axis=-1)
    assert (collisions[::2] > 0).all()  # else nothing was said about them


def test_simple_spread_starts_alike_here_and_in_jaxmarl():
    pytest.importorskip("jaxmarl")
    import jax

    ours = envs.make(SPREAD).open(np.arange(64).reshape(1, 64), 0).reset().observation[0]
    theirs = jax.vmap(envs.make("jaxmarl:MPE_simple_spread_v3").reset)(jax.random.split(jax.random.key(0), 64))[1]
    for observation in (ours, np.asarray(theirs)):
        places = observation[..., 2:4]
        landmarks = (observation[..., 4:10].reshape(64, 3, 3, 2) + places[:, :, None])[:, 0]
        for spot in (places, landmarks):  # uniform in the square from -1 to 1
            assert 0.9 < np.abs(spot).max() <= 1 + 1e-6
            np.testing.assert_allclose(spot.mean((0, 1)), 0, atol=0.15)
            np.testing.assert_allclose(spot.std((0, 1)), 3**-0.5, atol=0.08)
        assert not observation[..., :2].any()
        assert not observation[..., 14:].any()


def test_agents_that_take_different_actions_are_refused_by_name():
    with pytest.raises(TesseraError, match=r"speaker_0 takes Discrete\(3\) and listener_0 takes Discrete\(5\)"):
        envs.make("pettingzoo:mpe2.simple_speaker_listener_v4")
    with pytest.raises(TesseraError, match=r"ann takes Discrete\(3\) and cat takes Discrete\(3, start=1\)"):
        team(actions=(spaces.Discrete(3), spaces.Discrete(3), spaces.Discrete(3, start=1)))


def test_names_that_cannot_be_played_say_why():
    with pytest.raises(
        TesseraError, match=r"unknown PettingZoo environment 'mpe2.simple_spred_v3': did you mean 'mpe2"
    ):
        envs.make("pettingzoo:mpe2.simple_spred_v3")
    with pytest.raises(TesseraError, match=r"did you mean 'mpe2.simple_spread_v3'"):
        envs.make("pettingzoo:simple_spread_v3")
    with pytest.raises(TesseraError, match="has neither parallel_env nor env"):
        envs.make("pettingzoo:utils.agent_selector")
    with pytest.raises(TesseraError, match="with options wings"):
        envs.make(SPREAD, wings=2)


def test_a_module_of_ones_own_is_played(monkeypatch):
    import scripted_teams

    monkeypatch.setattr(scripted_teams, "parallel_env", Leavers, raising=False)
    env = envs.make("pettingzoo:scripted_teams", widths=(2, 2, 2))
    assert (env.name, env.spec.observation_shape) == ("pettingzoo:scripted_teams", (3, 2))


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(TesseraError, match=r"not installed \(pettingzoo\): run pip install 'pettingzoo>="):
        envs.make(SPREAD)


def test_a_vector_may_be_closed_twice():
    vector = envs.make(SPREAD).open(np.array([[0]]), 0)
    vector.close()
    vector.close()
