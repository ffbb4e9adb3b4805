"""PQN: its targets against values worked out by hand, layer normalisation, and the same params under every policy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parity.matrix import MOVED, assert_same_state, furthest, run

from tessera import PQN, Discrete, Spec, Transition, View, policies
from tessera.algorithms.contract import Clock
from tessera.stores.base import Sample

SPEC = Spec((3,), "float32", Discrete(2))


def test_targets_are_lambda_returns_of_the_best_actions(monkeypatch):
    class Table:
        """The value of an action is a row of the params, by the number that is observed."""

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def apply(self, params, observation):
            return params[observation[..., 0].astype(jnp.int32)]

    monkeypatch.setattr("tessera.algorithms.pqn.QNetwork", Table)
    algorithm = PQN(gamma=0.5, look_ahead=0.5).bind(SPEC)
    params = jnp.asarray([[0.0, 1.0], [4.0, 2.0], [8.0, -1.0], [16.0, 3.0]])  # at best 1, 4, 8 and 16
    states = jnp.asarray([[0.0], [1.0], [2.0]])[..., None] * jnp.asarray([1.0, 0, 0])
    nexts = jnp.asarray([[1.0], [2.0], [3.0]])[..., None] * jnp.asarray([1.0, 0, 0])
    never, actions = jnp.zeros((3, 1), bool), jnp.asarray([[1], [0], [0]])

    def targets(terminated: Any = never, truncated: Any = never) -> list[float]:
        rows = Transition(states, actions, (), jnp.asarray([[1.0], [2.0], [3.0]]), terminated, truncated, nexts)
        batch, counts = algorithm.prepare(View(params, (), (), Clock(jnp.int32(0), jnp.int32(9))), Sample(rows))
        assert float(counts) == 1.0
        np.testing.assert_array_equal(batch.action, [1, 0, 0])
        return batch.target.tolist()

    third = 3 + 0.5 * 16
    second = 2 + 0.5 * (0.5 * 8 + 0.5 * third)
    assert targets() == pytest.approx([1 + 0.5 * (0.5 * 4 + 0.5 * second), second, third])
    end = never.at[1].set(True)
    assert targets(terminated=end) == pytest.approx([1 + 0.5 * (0.5 * 4 + 0.5 * 2), 2, third])
    assert targets(truncated=end) == pytest.approx([1 + 0.5 * (0.5 * 4 + 0.5 * 6), 2 + 0.5 * 8, third])


@pytest.mark.parametrize("shape", [(3,), (10, 10, 4)])
def test_every_layer_but_the_last_is_normalised(shape):
    algorithm = PQN(widths=(8, 8)).bind(Spec(shape, "float32", Discrete(2)))
    params = algorithm.init(jax.random.key(0))
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    layers = {name.rsplit("[", 1)[0] for name in names}
    assert sum("LayerNorm" in name for name in layers) == len(layers) // 2
    seen = jax.random.normal(jax.random.key(1), (5, *shape))
    if shape == (3,):  # scaling the weights of a normalised layer changes nothing
        kernel = params["params"]["MLP_0"]["SpreadDense_0"]
        larger = jax.tree.map(lambda x: 7 * x, kernel)
        other = {"params": {**params["params"], "MLP_0": {**params["params"]["MLP_0"], "SpreadDense_0": larger}}}
        np.testing.assert_allclose(algorithm.model.apply(other, seen), algorithm.model.apply(params, seen), atol=1e-4)


SMALL = PQN(unroll=8, epochs=2, minibatches=2, widths=(8,), learning_rate=0.01)


@pytest.fixture(scope="module")
def on_one_device() -> Any:
    with jax.enable_x64(True):
        before, after, _ = run(SMALL, policies.get("fused", devices=1))
    assert furthest(before.params, after.params) > MOVED
    return after


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("policy", ["single_learner_coarse:actors=2", "central:workers=2,shards=2"])
def test_every_policy_gives_the_params_of_fused(policy, on_one_device):
    assert_same_state(SMALL, policy, on_one_device)
