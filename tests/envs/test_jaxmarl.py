from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_gymnax import rollout

from tessera import envs
from tessera.errors import TesseraError

pytest.importorskip("jaxmarl")
from tessera.envs.jaxmarl import JaxMARLEnvironment, import_jaxmarl

jaxmarl = import_jaxmarl()
SPREAD = "jaxmarl:MPE_simple_spread_v3"


def zero_actions(env: Any) -> Any:
    actions, agents = env.spec.actions, env.spec.agents
    if isinstance(actions, envs.Discrete):
        return jnp.zeros(agents, jnp.int32)
    return jnp.zeros((agents, *actions.shape), jnp.float32)


def test_simple_spread_gives_the_golden_trace():
    env = envs.make(SPREAD)
    assert env.spec == envs.Spec((3, 18), "float32", envs.Discrete(5), agents=3)
    state, _ = env.reset(jax.random.key(0))
    places = jnp.array([[0.0, 0.0], [3.0, 0.0], [3.2, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, -2.0]])
    state = state.replace(p_pos=places, p_vel=jnp.zeros((6, 2)))
    step = jax.jit(env.step)
    # The first agent goes right: a push adds 0.5 to its speed, a quarter of which is lost at each step, and its place
    # follows a step later. So do those of the others, which overlap by 0.1: that pushes each by 1.0, twice.
    speeds, xs, strays = [0.5, 0.875, 1.15625], [0.0, 0.05, 0.1375], [0.0, 0.1, 0.275]
    for t, (speed, x, stray) in enumerate(zip(speeds, xs, strays, strict=True)):
        state, observation, reward, terminated, truncated = step(state, jnp.array([2, 0, 0]), jax.random.key(t))
        np.testing.assert_allclose(observation[0, :10], [speed, 0, x, 0, -x, 1, 3 - x, 0, -x, -2], atol=1e-6)
        np.testing.assert_allclose(observation[1:, 2], [3 - stray, 3.2 + stray], atol=1e-6)
        nearest = np.hypot(x, 1) + np.hypot(x, 2) + stray
        bumped = 0.5 * (t == 0)
        np.testing.assert_allclose(reward, -0.5 * nearest - np.array([0, bumped, bumped]), atol=1e-6)
        assert not (terminated | truncated)
    np.testing.assert_allclose(observation[0, 10:14], np.ravel(state.p_pos[1:3] - state.p_pos[0]), atol=1e-6)
    np.testing.assert_allclose(observation[2, 10:14], np.ravel(state.p_pos[:2] - state.p_pos[2]), atol=1e-6)
    assert not observation[:, 14:].any()


def test_particle_worlds_truncate_at_their_limit_and_never_terminate():
    env = envs.make(SPREAD, max_steps=4)
    actions = np.random.default_rng(0).integers(0, 5, (10, 2, 3)).astype(np.int32)
    observation, reward, terminated, truncated, final = rollout(env, actions)
    assert not terminated.any()
    np.testing.assert_array_equal(np.flatnonzero(truncated[:, 0]), [3, 7])
    assert (observation.shape, reward.shape) == ((10, 2, 3, 18), (10, 2, 3))
    assert not observation[truncated][..., :2].any()  # agents start at rest
    assert final[truncated][..., :2].any()
    np.testing.assert_array_equal(observation[~truncated], final[~truncated])


@pytest.mark.parametrize(
    "name",
    [
        "MPE_simple_tag_v3",
        "MPE_simple_facmac_v1",
        "HeuristicEnemySMAX",
        "switch_riddle",
        "overcooked",
        "coin_game",
        "jaxnav",
    ],
)
def test_a_step_keeps_the_shapes_and_dtypes_of_a_reset(name):
    env = envs.make(f"jaxmarl:{name}")
    key = jax.random.key(0)
    state, observation = jax.eval_shape(env.reset, key)
    stepped, seen, reward, terminated, truncated = jax.eval_shape(env.step, state, zero_actions(env), key)
    assert stepped == state
    assert not any(leaf.weak_type for leaf in jax.tree.leaves((state, stepped)))
    assert (seen.shape, seen.dtype) == (observation.shape, jnp.float32) == (env.spec.observation_shape, jnp.float32)
    assert (reward.shape, reward.dtype) == ((env.spec.agents,), jnp.float32)
    assert (terminated.shape, terminated.dtype) == (truncated.shape, truncated.dtype) == ((), bool)


def test_rewards_are_float64_and_observations_float32_when_x64_is_on(x64):
    env = envs.make(SPREAD, precision="f64")
    state, observation = jax.eval_shape(env.reset, jax.random.key(0))
    stepped, seen, reward, _, _ = jax.eval_shape(env.step, state, zero_actions(env), jax.random.key(0))
    assert reward.dtype == jnp.float64
    assert observation.dtype == seen.dtype == jnp.float32
    assert stepped == state


def test_shorter_observations_are_padded_with_zeros():
    env = envs.make("jaxmarl:MPE_simple_tag_v3")
    assert env.spec.observation_shape == (4, 16)
    _, observation = env.reset(jax.random.key(3))
    raw, _ = jaxmarl.make("MPE_simple_tag_v3").reset(jax.random.key(3))
    np.testing.assert_array_equal(observation[0], raw["adversary_0"])
    np.testing.assert_array_equal(observation[3], [*raw["agent_0"], 0, 0])


def test_continuous_actions_have_their_bounds():
    env = envs.make(SPREAD, action_type="Continuous")
    assert env.spec.actions == envs.Box((5,), (0.0,) * 5, (1.0,) * 5)


@pytest.mark.parametrize("tells", [True, False])
def test_what_ends_by_play_terminates_even_at_the_last_step_and_else_the_limit_truncates(tells):
    actions = np.zeros((6, 1, 3), np.int32)
    actions[5] = 2 if tells else 0  # whoever is in the riddle's room tells, which ends it
    _, reward, terminated, truncated, _ = rollout(envs.make("jaxmarl:switch_riddle"), actions)
    np.testing.assert_array_equal(terminated[:, 0], [0, 0, 0, 0, 0, tells])
    np.testing.assert_array_equal(truncated[:, 0], [0, 0, 0, 0, 0, not tells])
    np.testing.assert_array_equal(np.abs(reward[5, 0]), [tells] * 3)


def test_dead_soldiers_are_not_alive_and_a_battle_ends_by_its_last_death_or_by_time():
    env = envs.make("jaxmarl:HeuristicEnemySMAX", scenario="3m", max_steps=3, enemy_shoots=False)
    state, observation = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 3))
    assert observation.shape == (3, *env.spec.observation_shape) == (3, 3, env.spec.observation_shape[1])
    np.testing.assert_array_equal(jax.vmap(env.alive)(state), np.ones((3, 3), bool))
    step = jax.jit(jax.vmap(env.step, in_axes=(0, 0, None)))
    hits = np.ones((3, 3, 6))  # [step, battle, soldier]; allies come first
    hits[0, :2, 1] = 0  # in two battles the second ally dies at once
    hits[2, 1, 3:] = 0  # and in one of these all enemies at the last step
    for t in range(3):
        inner = state.state.replace(unit_health=state.state.unit_health * hits[t].astype(np.float32))
        stay = jnp.full((3, 3), 4, jnp.int32)
        state, observation, reward, terminated, truncated = step(state.replace(state=inner), stay, jax.random.key(t))
        alive = np.array([[1, 0, 1], [1, 0, 1], [1, 1, 1]])
        np.testing.assert_array_equal(jax.vmap(env.alive)(state), alive)
        np.testing.assert_array_equal(np.asarray(observation).any(axis=-1), alive)
        np.testing.assert_array_equal(terminated, [False, t == 2, False])
        np.testing.assert_array_equal(truncated, [t == 2, False, t == 2])
    np.testing.assert_array_equal(reward[1], np.ones(3))  # the dead share in a victory


def test_where_no_agent_drops_out_alive_is_none():
    env = envs.make(SPREAD)
    assert env.alive(env.reset(jax.random.key(0))[0]) is None


def test_robots_that_collided_or_vanished_are_not_alive():
    env = envs.make("jaxmarl:jaxnav")
    flags = jnp.array([[False, True, False], [False, False, True]])
    np.testing.assert_array_equal(env.alive(SimpleNamespace(done=flags[0], move_term=flags[1])), [True, False, False])


def test_agents_that_take_different_actions_are_refused_by_name():
    with pytest.raises(TesseraError, match=r"speaker_0 takes Discrete\(n=3\) and listener_0 takes Discrete\(n=5\)"):
        envs.make("jaxmarl:MPE_simple_speaker_listener_v4")


def test_spaces_that_no_algorithm_gives_are_refused():
    spaces = jaxmarl.environments.spaces
    made = SimpleNamespace(agents=["a"], action_space=lambda agent: spaces.Tuple([spaces.Discrete(2)]))
    with pytest.raises(TesseraError, match="takes actions"):
        JaxMARLEnvironment("made", made, timed=True)


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(
        TesseraError, match="unknown JaxMARL environment 'MPE_simple_spread': did you mean 'MPE_simple_"
    ):
        envs.make("jaxmarl:MPE_simple_spread")
    with pytest.raises(TesseraError, match="unknown SMAX scenario '3mm': did you mean '3m'"):
        envs.make("jaxmarl:HeuristicEnemySMAX", scenario="3mm")
    with pytest.raises(TesseraError, match="unknown option of jaxmarl:MPE_simple_spread_v3 'max_cycles': did you mean"):
        envs.make(SPREAD, max_cycles=3)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("hanabi", "take turns"),
        ("storm_2p", "arrays"),
        ("ant_4x2", "deprecated"),
        ("JaxRobotarium_navigation", "jaxrobotarium"),
    ],
)
def test_names_that_cannot_be_played_say_why(name, why):
    with pytest.raises(TesseraError, match=f"jaxmarl:{name} cannot be played here, because .*{why}"):
        envs.make(f"jaxmarl:{name}")


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "jaxmarl", None)
    with pytest.raises(TesseraError, match=r"not installed \(jaxmarl\): run pip install 'jaxmarl>="):
        envs.make(SPREAD)


def test_importing_jaxmarl_prints_nothing_and_leaves_brax_and_standard_output_alone():
    code = """
import sys
mine = sys.stdout = open(sys.argv[1], "w")
from tessera.envs.jaxmarl import import_jaxmarl
import_jaxmarl()
assert sys.stdout is mine and "brax" not in sys.modules and "jaxmarl.environments.mabrax" not in sys.modules
print("done")
"""
    done = subprocess.run([sys.executable, "-c", code, "/dev/stdout"], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr
