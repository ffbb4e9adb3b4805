"""C51, QR-DQN and noisy networks: against rlax and values worked out by hand, and the same under every policy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from parity.matrix import MOVED, assert_same_state, furthest, run

from tessera import C51, DQN, QRDQN, Discrete, Spec, TesseraError, Timestep, View, policies
from tessera.algorithms.contract import Clock
from tessera.algorithms.parts.n_step_windows import Row
from tessera.maths.losses import project_on_atoms, quantile_loss
from tessera.networks.mlp import NoisyDense

SPEC = Spec((3,), "float32", Discrete(2))
BOARD = Spec((10, 10, 4), "float32", Discrete(2))
ATOMS = jnp.linspace(-2.0, 2.0, 5)


def made(kind: Any, **flags: Any) -> tuple[Any, Any, Any]:
    """A bound algorithm, its params, and those of its target."""
    algorithm = kind(widths=(8,), **flags).bind(SPEC)
    algorithm.check()
    return algorithm, algorithm.init(jax.random.key(0)), algorithm.init(jax.random.key(1))


def rows_of(n: int = 6) -> Row:
    keys = jax.random.split(jax.random.key(1), 4)
    seen = [jax.random.normal(k, (n, 3)) for k in keys[:2]]
    action = jax.random.randint(keys[2], (n,), 0, 2)
    return Row(seen[0], action, 3 * jax.random.normal(keys[3], (n,)), jnp.full(n, 0.9), seen[1])


def view_of(params: Any, target: Any) -> View:
    return View(params, target, (), Clock(jnp.int32(1), jnp.int32(100)))


def test_weights_are_shared_out_to_the_atoms_beside_them():
    values, weights = jnp.asarray([-0.25, 5.0, 1.0]), jnp.asarray([0.4, 0.5, 0.1])
    np.testing.assert_allclose(project_on_atoms(values, weights, ATOMS), [0, 0.1, 0.3, 0.1, 0.5], atol=1e-6)
    expected = rlax.categorical_l2_project(jnp.sort(values), weights[jnp.argsort(values)], ATOMS)
    np.testing.assert_allclose(project_on_atoms(values, weights, ATOMS), expected, atol=1e-6)


@pytest.mark.parametrize("delta", [0.0, 0.5, 1.0])
def test_the_loss_of_quantiles_is_rlaxs(delta):
    quantiles, targets = jax.random.normal(jax.random.key(0), (2, 7))
    middles = (jnp.arange(7) + 0.5) / 7
    expected = rlax.quantile_regression_loss(quantiles, middles, targets, delta)
    np.testing.assert_allclose(quantile_loss(quantiles, targets, delta), expected, rtol=1e-5)
    alone = quantile_loss(jnp.asarray([1.0]), jnp.asarray([3.0]), 1.0)  # half of Huber's loss of 2, which is 1.5
    assert float(alone) == pytest.approx(0.75)


@pytest.mark.parametrize("double", [False, True])
def test_dqns_errors_are_rlaxs(double):
    algorithm, params, target = made(DQN, double=double)
    rows = rows_of()
    now, then = (algorithm.model.apply(p, x) for p, x in ((params, rows.observation), (target, rows.bootstrap)))
    judged = algorithm.model.apply(params, rows.bootstrap) if double else then
    wanted = jax.vmap(rlax.double_q_learning)(now, rows.action, rows.reward, rows.discount, then, judged)
    np.testing.assert_allclose(algorithm.row_errors(params, target, rows), -wanted, rtol=1e-5)
    gradients, _ = algorithm.loss_gradient(view_of(params, target), rows, 1.0, jax.random.key(0))
    fixed = algorithm.targets(params, target, rows)  # no gradient flows into it
    alone = jax.grad(lambda p: algorithm.row_losses(p, fixed, rows)[0].mean())(params)
    jax.tree.map(lambda g, a: np.testing.assert_allclose(g, a, rtol=1e-5), gradients, alone)


@pytest.mark.parametrize("double", [False, True])
def test_c51s_losses_are_rlaxs(double):
    algorithm, params, target = made(C51, double=double, atoms=5, lowest=-2.0, highest=2.0)
    rows = rows_of()
    now, then = (algorithm.model.apply(p, x) for p, x in ((params, rows.observation), (target, rows.bootstrap)))
    judged = algorithm.action_values(params, rows.bootstrap)

    def expected(now, action, reward, discount, then, judged):
        if double:
            given = (ATOMS, now, action, reward, discount, ATOMS, then, judged)
            return rlax.categorical_double_q_learning(*given)
        return rlax.categorical_q_learning(ATOMS, now, action, reward, discount, ATOMS, then)

    wanted = jax.vmap(expected)(now, rows.action, rows.reward, rows.discount, then, judged)
    np.testing.assert_allclose(algorithm.row_errors(params, target, rows), wanted, rtol=1e-5)
    _, (metrics, error) = algorithm.loss_gradient(view_of(params, target), rows, 1.0, jax.random.key(0))
    assert float(metrics["loss"]) == pytest.approx(float(wanted.mean()), rel=1e-5)
    np.testing.assert_allclose(error, wanted, rtol=1e-5)


def test_qr_dqns_losses_are_rlaxs():
    algorithm, params, target = made(QRDQN, quantiles=5, double=True)
    rows = rows_of()
    now, then = (algorithm.model.apply(p, x) for p, x in ((params, rows.observation), (target, rows.bootstrap)))
    judged = algorithm.model.apply(params, rows.bootstrap)
    middles = (jnp.arange(5) + 0.5) / 5

    def expected(now, action, reward, discount, then, judged):
        given = (now.T, middles, action, reward, discount, judged.T, then.T)
        return rlax.quantile_q_learning(*given, huber_param=1.0)

    wanted = jax.vmap(expected)(now, rows.action, rows.reward, rows.discount, then, judged)
    np.testing.assert_allclose(algorithm.row_errors(params, target, rows), wanted, rtol=1e-4)


@pytest.mark.parametrize("kind", [C51, QRDQN])
def test_the_best_action_has_the_highest_mean_and_dueling_heads_centre_it(kind):
    algorithm, params, _ = made(kind, dueling=True)
    nothing = jnp.zeros((), bool)
    seen = Timestep(jnp.ones(3), jnp.zeros(()), nothing, nothing, None)
    values = algorithm.action_values(params, seen.observation)
    assert values.shape == (2,)
    greedy, _ = algorithm.greedy(view_of(params, params), (), seen, jax.random.key(0))
    assert int(greedy) == int(values.argmax())


def test_returns_that_are_learned_for_suit_the_observations():
    assert (C51().bind(SPEC).atoms, C51().bind(SPEC).highest) == (101, 100.0)
    assert (C51().bind(BOARD).atoms, C51().bind(BOARD).lowest) == (51, -25.0)
    with pytest.raises(TesseraError, match=r"--lowest 3.0 is not below --highest 1.0"):
        made(C51, lowest=3.0, highest=1.0)


def test_noise_on_weights_is_drawn_for_each_row_and_none_without_a_key():
    algorithm, params, _ = made(DQN, noisy=True)
    seen = jnp.broadcast_to(jnp.asarray([0.5, -1.0, 2.0]), (4000, 3))
    drawn = algorithm.outputs(params, seen, jax.random.split(jax.random.key(0), 4000))
    mean = algorithm.outputs(params, seen[:1])[0]
    assert float(drawn.std(axis=0).min()) > 0.05
    np.testing.assert_array_equal(algorithm.outputs(params, seen[:1])[0], mean)
    quiet = jax.tree_util.tree_map_with_path(
        lambda path, x: jnp.zeros_like(x) if "deviation" in jax.tree_util.keystr(path) else x, params
    )
    np.testing.assert_allclose(algorithm.outputs(quiet, seen[:3], jax.random.split(jax.random.key(0), 3))[1], mean)
    assert float(algorithm.epsilon(view_of(params, params), ())) == 0.0
    assert algorithm.noisy_loss
    assert not DQN().noisy_loss


def test_one_noisy_layer_adds_what_fortunato_writes():
    layer, x = NoisyDense(2, jnp.dtype("float32"), jnp.dtype("float32")), jnp.asarray([1.0, -2.0, 0.5])
    params = layer.init(jax.random.key(0), x)
    held = params["params"]
    assert float(held["kernel_deviation"][0, 0]) == pytest.approx(0.5 / np.sqrt(3))
    out = layer.apply(params, x, rngs={"noise": jax.random.key(7)}) - layer.apply(params, x)
    ones = jax.tree.map(jnp.ones_like, held)  # with x = 0 only the bias's noise is left: f(e_out)
    at_zero = layer.apply({"params": ones}, jnp.zeros(3), rngs={"noise": jax.random.key(7)}) - 1.0
    unit = [
        (layer.apply({"params": ones}, jnp.eye(3)[k], rngs={"noise": jax.random.key(7)}) - 2.0) / at_zero - 1.0
        for k in range(3)
    ]  # f(e_in), one input at a time
    weights = held["kernel_deviation"] * jnp.stack(unit) * at_zero[None]
    np.testing.assert_allclose(out, x @ weights + held["bias_deviation"] * at_zero, rtol=1e-4)


SMALL: dict[str, Any] = {
    "unroll": 8, "draws": 2, "batch": 48, "capacity": 480, "warmup": 2, "widths": (8,), "learning_rate": 0.01,
    "target_period": 4, "prioritised": True,
}  # fmt: skip
KINDS = {"rainbow": C51(**SMALL, atoms=11, noisy=True, dueling=True, n_step=3), "qr_dqn": QRDQN(**SMALL, quantiles=5)}


@pytest.fixture(scope="module")
def on_one_device() -> Any:
    states = {}
    with jax.enable_x64(True):
        for name, algorithm in KINDS.items():
            before, states[name], _ = run(algorithm, policies.get("fused", devices=1))
            assert furthest(before.params, states[name].params) > MOVED
    return states


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("policy", ["distributed_replay:actors=2,stores=2", "central:workers=2,shards=2"])
def test_every_policy_gives_the_params_of_fused(name, policy, on_one_device):
    assert_same_state(KINDS[name], policy, on_one_device[name])
