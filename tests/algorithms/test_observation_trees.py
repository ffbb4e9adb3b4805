"""Observations of several parts: what networks make of them, and that PPO and DQN learn from all parts."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agent.written_runs import write_run
from envs.worlds import STEPS, Signs, SignsHost
from gymnasium import spaces
from parity.matrix import MOVED, assert_same_state, furthest, run

import tessera
from tessera import envs, policies
from tessera.envs import Discrete, Spec
from tessera.envs.vectors import seed_for
from tessera.networks import torso, torso_name

TREE = Spec({"b": ((4,), (2, 3)), "a": (5, 5, 2)}, {"b": "float32", "a": "uint8"}, Discrete(3))


def test_a_spec_names_the_parts_in_the_order_of_jax():
    assert list(TREE.parts) == ["a", "b/0", "b/1"]
    assert [part.shape for part in TREE.parts.values()] == [x.shape for x in jax.tree.leaves(TREE.zeros(jnp))]
    assert TREE.zeros(np, 7)["a"].shape == (7, 5, 5, 2)
    assert TREE.zeros(np)["a"].dtype == np.uint8
    assert TREE.is_tree
    assert TREE.pixels
    assert hash(TREE) == hash(Spec({"b": ((4,), (2, 3)), "a": (5, 5, 2)}, TREE.observation_dtype, Discrete(3)))
    with pytest.raises(tessera.TesseraError, match="needs observations of one array, and these have a, b/0, b/1"):
        _ = TREE.array


def test_each_part_has_its_encoder_and_all_are_joined():
    assert torso_name(TREE) == "small"
    network = torso(TREE, widths=(7,))
    params = network.init(jax.random.key(0), TREE.zeros(jnp))
    kernels = sorted(x.shape for x in jax.tree.leaves(params) if x.ndim > 1)
    assert kernels == [(3, 3, 2, 16), (3 * 3 * 16 + 4 + 6, 7)]
    one = {"a": jnp.full((5, 5, 2), 9, jnp.uint8), "b": (jnp.ones(4), jnp.ones((2, 3)))}
    both = jax.tree.map(lambda x, y: jnp.stack([x, y]), one, TREE.zeros(jnp))
    np.testing.assert_allclose(network.apply(params, both)[0], network.apply(params, one), rtol=1e-6)


@pytest.mark.parametrize("mode", ["same_step", "next_step", "disabled"])
def test_spaces_with_an_image_stay_a_tree(mode):
    env = envs.make(SignsHost, autoreset=mode)
    assert env.spec.observation_shape == {"picture": (5, 5, 2), "shift": (5,)}  # without an image in it: a vector
    assert env.spec.observation_dtype == {"picture": "uint8", "shift": "float32"}
    vector = env.open(np.arange(4).reshape(2, 2), 0)
    timestep = vector.reset()
    alone = SignsHost()
    first, _ = alone.reset(seed=seed_for(0, 1))
    np.testing.assert_array_equal(timestep.observation["picture"][0, 1], first["picture"])
    by, more = first["shift"]
    np.testing.assert_allclose(timestep.observation["shift"][0, 1], [*np.eye(3)[by - 1], *more])
    for k in range(STEPS):
        timestep = vector.step(np.zeros((2, 2), np.int32))
        shares = timestep.final["shift"][..., 3]
        np.testing.assert_allclose(shares, np.full((2, 2), (k + 1) / STEPS), rtol=1e-6)
    assert timestep.truncated.all()
    if mode != "next_step":  # the new episode's first observation, beside the old one's last
        np.testing.assert_array_equal(timestep.observation["shift"][..., 3], np.zeros((2, 2)))


def test_small_dicts_are_still_flattened():
    class Small(SignsHost):
        observation_space = spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(3)})

    assert envs.make(Small).spec.observation_shape == (5,)


SMALL: dict[str, Any] = {
    "ppo": tessera.PPO(unroll=8, epochs=2, minibatches=2, widths=(8,), learning_rate=0.01),
    "dqn": tessera.DQN(unroll=8, draws=2, batch=48, capacity=480, warmup=2, widths=(8,), learning_rate=0.01, n_step=3),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["dqn", pytest.param("ppo", marks=pytest.mark.slow)])
def test_policies_that_place_it_otherwise_give_the_same_params(name):
    before, after, _ = run(SMALL[name], policies.get("fused", devices=1), env=Signs())
    assert furthest(before.params, after.params) > MOVED
    assert_same_state(SMALL[name], "single_learner_coarse:actors=2", after, Signs())


LEARN = {
    "ppo": (tessera.PPO(unroll=32, learning_rate=2e-3), 200_000),
    "dqn": (tessera.DQN(widths=(32,), learning_rate=2e-3, n_step=1, warmup=8), 16_000),
}


@pytest.mark.parametrize("env", [Signs, SignsHost], ids=["device", "host"])
@pytest.mark.parametrize("name", [pytest.param("ppo", marks=pytest.mark.slow), "dqn"])
def test_both_parts_are_learned_from(name, env):
    algorithm, steps = LEARN[name]
    result = tessera.train(algorithm, env, "fused", steps=steps, seed=2, quiet=True, eval_episodes=32)
    assert result.summary["eval_return_mean"] > 0.95 * STEPS  # one part alone is right in a third of all steps


def test_an_agent_acts_on_one_observation_or_a_batch_of_trees(tmp_path):
    result = tessera.train(SMALL["ppo"], Signs, "fused", steps=400, envs=8, quiet=True, eval_episodes=1)
    seen, legal = Signs.spec.zeros(np), np.array([True, False, True])
    one = result.act(seen, legal=legal)
    several = result.act(jax.tree.map(lambda x: np.stack([x, x]), seen), legal=np.stack([legal, legal]))
    assert several.tolist() == [one, one]
    with pytest.raises(tessera.TesseraError, match="with the parts picture, shift/by, and something is missing"):
        result.act({"picture": seen["picture"]}, legal=legal)
    with pytest.raises(tessera.TesseraError, match="differ in their leading axis"):
        result.act({**seen, "picture": seen["picture"][None]}, legal=legal)


@pytest.mark.parametrize("env", [SignsHost, "FrozenLake-v1"])
def test_an_agent_reads_observations_as_gymnasium_gives_them(env):
    result = tessera.train(SMALL["ppo"], env, "fused", steps=400, envs=8, quiet=True, eval_episodes=1)
    world = gymnasium.make(env) if isinstance(env, str) else env()
    seen, _ = world.reset(seed=1)
    for _ in range(3):
        action = int(result.act(seen))
        assert world.action_space.contains(action)
        seen, *_ = world.step(action)


def test_an_exported_function_takes_each_part_and_the_mask(tmp_path):
    folder = write_run(tmp_path / "run", SMALL["ppo"], "py:envs.worlds.Signs")
    agent = tessera.load(folder, trust=True)
    written = agent.export(tmp_path / "act.stablehlo")
    assert written.inputs == ("float32[b, 5, 5, 2]", "float32[b, 3]", "bool[b, 3]")
    act = jax.export.deserialize(bytearray((tmp_path / "act.stablehlo").read_bytes())).call
    random = np.random.default_rng(0)
    seen = {"picture": random.normal(size=(9, 5, 5, 2)).astype(np.float32)}
    seen["shift"] = {"by": random.normal(size=(9, 3)).astype(np.float32)}
    legal = np.eye(3, dtype=bool)[random.integers(0, 3, 9)] | np.eye(3, dtype=bool)[0]
    (action,) = act(seen["picture"], seen["shift"]["by"], legal)
    np.testing.assert_array_equal(action, agent.act(seen, legal=legal))
    assert legal[np.arange(9), action].all()
