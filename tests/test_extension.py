"""What users write: an algorithm, a device environment, a Gymnasium environment. docs/environments.md quotes these."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tessera
from tessera import policies

FUSED = policies.get("fused", devices=1)
EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "reinforce.py"


def reinforce():
    if str(EXAMPLE.parent) not in sys.path:  # processes that are started look for it there too
        sys.path.insert(0, str(EXAMPLE.parent))
    return importlib.import_module("reinforce").Reinforce(unroll=8)


class DeviceMatch(tessera.DeviceEnvironment):
    """Say which sign is shown: a point for each right answer, ten to be had."""

    spec = tessera.Spec((1,), "float32", tessera.Discrete(2))

    def reset(self, key):
        shown = jax.random.rademacher(key, (1,), jnp.float32)
        return (shown, 0), shown

    def step(self, state, action, key):
        shown, time = state
        reward = jnp.where(action == (shown[0] > 0), 1.0, 0.0)
        (shown, _), _ = self.reset(key)
        return (shown, time + 1), shown, reward, False, time == 9


class HostMatch(gymnasium.Env):
    """The same as a Gymnasium environment."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.shown = 0, self.np_random.choice(np.float32([-1, 1]), 1)
        return self.shown, {}

    def step(self, action):
        reward = float(action == (self.shown[0] > 0))
        self.time, self.shown = self.time + 1, self.np_random.choice(np.float32([-1, 1]), 1)
        return self.shown, reward, False, self.time == 10, {}


def test_every_public_name_is_what_it_says_whatever_was_imported_before():
    code = """
import tessera
missing = [name for name in tessera.__all__ if not hasattr(tessera, name)]
from tessera.api import train
from tessera.planning.prepare import prepare_plan
assert not missing, missing
assert tessera.train is train, tessera.train
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_example_is_shorter_than_80_lines():
    assert len(EXAMPLE.read_text().splitlines()) < 80


@pytest.mark.usefixtures("x64")
def test_an_algorithm_from_outside_trains_to_the_same_params_under_every_policy():
    fused, coarse = (
        tessera.train(
            reinforce(),
            "gymnax:CartPole-v1",
            policy,
            steps=3 * 16 * 8,
            envs=16,
            precision="f64",
            eval_episodes=1,
            quiet=True,
        )
        for policy in (FUSED, "single_learner_coarse")
    )
    assert [len(f.operators) for f in fused.plan.fragments] == [5]
    assert [f.replicas for f in coarse.plan.fragments] == [2, 1]
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-9), fused.params, coarse.params)
    first = fused.algorithm.init(jax.random.key(0))
    assert jax.tree.structure(first) == jax.tree.structure(fused.params)
    assert fused.summary["updates"] == coarse.summary["updates"] == 3


@pytest.mark.parametrize("env", [DeviceMatch, HostMatch], ids=lambda e: e.__name__)
def test_an_environment_from_outside_is_learned(env):
    algorithm = tessera.A2C(unroll=8, widths=(8,), learning_rate=0.02)
    result = tessera.train(algorithm, env, FUSED, steps=6_000, seed=1, envs=16, eval_episodes=16, quiet=True)
    assert result.summary["eval_return_mean"] == 10.0
    assert result.summary["env"].endswith(env.__name__)
    assert [int(result.act([x])) for x in (-1.0, 1.0)] == [0, 1]
