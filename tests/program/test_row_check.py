"""Noise in a loss: each row has a key of its own wherever it is learned from, and an author who shares one is told."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from parity.matrix import MOVED, assert_same_state, furthest, run

import tessera
from tessera import policies
from tessera.planning.prepare import prepare_plan
from tessera.program.row_check import difference_of_halves, warn_of_shared_noise

FUSED = policies.get("fused", devices=1)
CARTPOLE = "gymnax:CartPole-v1"


@dataclasses.dataclass(frozen=True)
class Jittered(tessera.PPO):
    """PPO that adds noise to the advantages of its rows."""

    name = "jittered"
    noisy_loss = True

    def noise(self, key: jax.Array, rows: int) -> jax.Array:
        """One number for each row, from its own key."""
        assert key.shape == (rows,)
        return jax.vmap(jax.random.normal)(key)

    def gradient(self, view: Any, batch: Any, summary: Any, key: jax.Array) -> Any:
        """PPO's, with noise."""
        advantage = batch.advantage + self.noise(key, len(batch.advantage))
        return super().gradient(view, batch._replace(advantage=advantage), summary, key)


@dataclasses.dataclass(frozen=True)
class SharedNoise(Jittered):
    """The same with one key for all rows."""

    noisy_loss = False

    def noise(self, key: jax.Array, rows: int) -> jax.Array:
        """All of them from one key."""
        return jax.random.normal(key, (rows,))


@dataclasses.dataclass(frozen=True)
class StandardisedInBatch(tessera.PPO):
    """PPO that standardises advantages over the rows it happens to get."""

    def gradient(self, view: Any, batch: Any, summary: Any, key: jax.Array) -> Any:
        """PPO's, of other advantages."""
        advantage = (batch.advantage - batch.advantage.mean()) / (batch.advantage.std() + 1e-6)
        return super().gradient(view, batch._replace(advantage=advantage), summary, key)


SMALL: dict[str, Any] = {"unroll": 8, "epochs": 2, "minibatches": 2, "widths": (8,), "learning_rate": 0.01}


@pytest.fixture(scope="module")
def on_one_device() -> Any:
    with jax.enable_x64(True):
        before, after, _ = run(Jittered(**SMALL), FUSED)
    assert furthest(before.params, after.params) > MOVED
    return after


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "policy", ["single_learner_coarse:actors=2", "multi_learner:learners=2", "central:workers=2,shards=2"]
)
def test_noise_of_rows_is_the_same_under_every_policy(policy, on_one_device):
    assert_same_state(Jittered(**SMALL), policy, on_one_device)


@pytest.mark.usefixtures("x64")
def test_noise_from_one_key_is_not():
    states = [run(SharedNoise(**SMALL), policies.parse(p))[1] for p in ("fused:devices=1", "multi_learner:learners=2")]
    assert furthest(states[0].params, states[1].params) > 1e-6


def planned(algorithm: tessera.Algorithm) -> Any:
    return prepare_plan(algorithm, CARTPOLE, FUSED)


@pytest.mark.parametrize("kind", [SharedNoise, StandardisedInBatch])
def test_an_author_whose_gradient_depends_on_who_has_the_rows_is_told(kind):
    with pytest.warns(UserWarning, match=r"not the mean over its rows.*noisy_loss = True.*summary"):
        warn_of_shared_noise(*planned(kind(**SMALL)))


@pytest.mark.parametrize(
    "algorithm",
    [Jittered(**SMALL), tessera.PPO(core="lstm"), tessera.A2C(), tessera.DQN(prioritised=True), tessera.IMPALA()],
    ids=lambda a: type(a).__name__,
)
def test_others_are_not(algorithm):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_shared_noise(*planned(algorithm))
    assert difference_of_halves(*planned(algorithm)) < 1e-4


def test_a_run_of_an_own_algorithm_warns():
    with pytest.warns(UserWarning, match="not the mean over its rows"):
        tessera.train(SharedNoise(**SMALL), CARTPOLE, FUSED, steps=500, envs=16, eval_episodes=1, quiet=True)


def test_labels_that_are_not_those_of_the_params_are_refused():
    @dataclasses.dataclass(frozen=True)
    class Mislabelled(tessera.SAC):
        @property
        def parts(self) -> dict[str, tessera.Part]:
            return {"actor": tessera.Part()}

    with pytest.raises(tessera.TesseraError, match=r"`init` of sac makes actor, critic, temp.*names actor: "):
        run(Mislabelled(batch=48, widths=(8,)), FUSED, env="gymnax:Pendulum-v1")


def test_a_gradient_without_one_of_the_parts_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Partial(tessera.SAC):
        def loss_gradient(self, *given: Any) -> Any:
            gradients, rest = super().loss_gradient(*given)
            return {name: g for name, g in gradients.items() if name != "actor"}, rest

    with pytest.raises(tessera.TesseraError, match=r"`gradient` of sac makes critic, temperature, but `parts` names"):
        run(Partial(batch=48, widths=(8,)), FUSED, env="gymnax:Pendulum-v1")


def test_keys_of_rows_without_noisy_loss_are_refused_with_what_to_say():
    @dataclasses.dataclass(frozen=True)
    class Forgetful(Jittered):
        noisy_loss = False

        def noise(self, key: jax.Array, rows: int) -> jax.Array:
            return jax.vmap(jax.random.normal)(key)

    with pytest.raises(tessera.TesseraError, match=r"a key for each row.*`noisy_loss = True`"):
        warn_of_shared_noise(*planned(Forgetful(**SMALL)))


def test_a_part_is_clipped_by_its_own_norm_and_stepped_by_its_own_optimiser():
    @dataclasses.dataclass(frozen=True)
    class Two(tessera.Algorithm):
        learning_rate: float = 0.5
        max_gradient_norm: float = 1.0
        optimizer = property(lambda self: optax.identity())

        @property
        def parts(self) -> dict[str, tessera.Part]:
            return {
                "a": tessera.Part(max_gradient_norm=2.0, learning_rate=0.1),
                "b": tessera.Part(optimizer=optax.scale_by_sign()),
            }

    algorithm, params = Two(), {"a": jnp.zeros(2), "b": jnp.zeros(2)}
    gradients = {"a": jnp.asarray([3.0, 4.0]), "b": jnp.asarray([-6.0, 8.0])}
    norms = {"a": jnp.float32(5.0), "b": jnp.float32(10.0)}
    step = tessera.Step(jnp.sqrt(125.0), norms)
    after = algorithm.apply(algorithm.start(params), gradients, step)
    np.testing.assert_allclose(after.params["a"], -0.1 * 2.0 * np.asarray([0.6, 0.8]), rtol=1e-5)
    np.testing.assert_allclose(after.params["b"], [0.5, -0.5], rtol=1e-6)
