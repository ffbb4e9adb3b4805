"""SAC: its losses against values worked out by hand, and the same params under every policy."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parity.matrix import MOVED, REPLAY_POLICIES, assert_same_state, furthest, run

from tessera import SAC, Box, Discrete, Spec, TesseraError, Timestep, View, policies
from tessera.algorithms.contract import Clock, Step
from tessera.algorithms.parts.n_step_windows import Row
from tessera.maths.distributions import SquashedGaussian

PENDULUM = "gymnax:Pendulum-v1"
BOX = Box((2,), (-2.0, 0.0), (2.0, 1.0))
SPEC = Spec((3,), "float32", BOX)
KEYS = jax.random.split(jax.random.key(5), 6)


def made(**flags: Any) -> tuple[SAC, Any]:
    """A bound algorithm and its params."""
    algorithm = SAC(widths=(8,), **flags).bind(SPEC)
    algorithm.check()
    return algorithm, algorithm.init(jax.random.key(0))


def rows_of(n: int = 6) -> Row:
    """Rows of noise; the bootstrap counts 0.9 of itself."""
    keys = jax.random.split(jax.random.key(1), 4)
    seen = [jax.random.uniform(k, (n, 3)) for k in keys[:2]]
    return Row(
        seen[0], jax.random.uniform(keys[2], (n, 2)), jax.random.normal(keys[3], (n,)), jnp.full(n, 0.9), seen[1]
    )


def view_of(params: Any, applies: int = 0) -> View:
    clock = Clock(jnp.int32(applies), jnp.int32(100))
    return View(params, {"critic": params["critic"]}, (), clock)


def saying(params: Any, *values: float) -> Any:
    """Params whose critics say the same of every action: the first value, the second."""
    critic = jax.tree.map(jnp.zeros_like, params["critic"])
    for k, value in enumerate(values):
        critic["params"][f"value_{k}"]["bias"] = jnp.full(1, value)
    return {**params, "critic": critic}


def test_the_density_of_a_squashed_number_integrates_to_one_and_is_what_samples_have():
    distribution = SquashedGaussian(jnp.asarray([0.3]), jnp.asarray([-0.5]))
    drawn, log_prob = jax.vmap(distribution.sample)(jax.random.split(jax.random.key(0), 200_000))
    edges = np.linspace(-1, 1, 21)
    share, _ = np.histogram(drawn[:, 0], edges)
    density = np.exp(log_prob)
    for k in range(20):
        inside = (drawn[:, 0] >= edges[k]) & (drawn[:, 0] < edges[k + 1])
        if share[k] > 2000:  # the mean of 1 / density over samples of a bin is the bin's width over its share
            width = float(jnp.mean(1.0 / density[inside])) * share[k] / 200_000
            assert width == pytest.approx(0.1, rel=0.05)
    x = np.arctanh(0.5)
    by_hand = -0.5 * ((x - 0.3) / math.exp(-0.5)) ** 2 + 0.5 - 0.5 * math.log(2 * math.pi) - math.log(1 - 0.25)
    nearest = int(jnp.argmin(jnp.abs(drawn[:, 0] - 0.5)))
    assert float(log_prob[nearest]) == pytest.approx(by_hand, abs=1e-3)
    np.testing.assert_allclose(distribution.mode(), [math.tanh(0.3)], rtol=1e-6)


def test_far_samples_have_a_finite_density():
    _, log_prob = SquashedGaussian(jnp.asarray([40.0]), jnp.asarray([0.0])).sample(jax.random.key(0))
    assert math.isfinite(float(log_prob))


def test_targets_are_the_lower_value_with_the_entropy_of_the_next_action():
    algorithm, params = made(temperature=0.5)
    params, rows = saying(params, 3.0, 2.0), rows_of()
    _, log_prob = algorithm.drawn(params["actor"], rows.bootstrap, KEYS)
    targets = algorithm.targets(params, params, rows, KEYS)
    np.testing.assert_allclose(targets, rows.reward + 0.9 * (2.0 - 0.5 * log_prob), rtol=1e-5)


@pytest.mark.parametrize("entropy", [-2.0, 0.0])
def test_the_three_losses_are_those_of_the_paper_and_none_reaches_anothers_params(entropy):
    algorithm, params = made(temperature=0.5, target_entropy=entropy)
    rows, scale = rows_of(), jnp.linspace(0.1, 1.0, 6)
    gradients, (metrics, _) = algorithm.loss_gradient(view_of(params), rows, scale, KEYS)
    pairs = jax.vmap(jax.random.split)(KEYS)

    def losses(params: Any, held: Any) -> jax.Array:
        targets = algorithm.targets(held, {"critic": held["critic"]}, rows, pairs[:, 0])
        values = algorithm.critic.apply(params["critic"], rows.observation, rows.action)
        critic = 0.5 * jnp.mean(scale[:, None] * (values - targets[:, None]) ** 2) * 2
        action, log_prob = algorithm.drawn(params["actor"], rows.observation, pairs[:, 1])
        value = algorithm.critic.apply(held["critic"], rows.observation, action).min(-1)
        actor = jnp.mean(scale * (0.5 * log_prob - value))
        held_log_prob = jax.lax.stop_gradient(log_prob)
        return critic + actor - params["temperature"] * jnp.mean(scale * (held_log_prob + entropy))

    expected = jax.grad(losses)(params, params)
    jax.tree.map(lambda g, e: np.testing.assert_allclose(g, e, rtol=1e-4, atol=1e-6), gradients, expected)
    assert float(metrics["temperature"]) == pytest.approx(0.5)


def test_a_fixed_temperature_stays():
    algorithm, params = made(adapt_temperature=False, temperature=0.2)
    state = algorithm.start(params)._replace(clock=Clock(jnp.int32(0), jnp.int32(10)))
    gradients, _ = algorithm.loss_gradient(view_of(params), rows_of(), 1.0, KEYS)
    after = algorithm.apply(state, gradients, Step(jnp.ones(())))
    assert float(jnp.exp(after.params["temperature"])) == pytest.approx(0.2)
    assert set(after.target) == {"critic"}


def test_actions_stay_in_their_range_and_are_any_before_the_first_gradient():
    algorithm, params = made()
    nothing = jnp.zeros((), bool)
    seen = Timestep(jnp.ones(3), jnp.zeros(()), nothing, nothing, None)
    keys = jax.random.split(jax.random.key(3), 2000)

    def played(applies: int) -> np.ndarray:
        return np.asarray(jax.vmap(lambda k: algorithm.act(view_of(params, applies), (), seen, k)[0])(keys))

    for applies in (0, 1):
        assert (played(applies) >= [-2, 0]).all()
        assert (played(applies) <= [2, 1]).all()
    np.testing.assert_allclose(played(0).std(axis=0), [4 / math.sqrt(12), 1 / math.sqrt(12)], rtol=0.05)
    greedy, _ = algorithm.greedy(view_of(params), (), seen, keys[0])
    mode = np.tanh(algorithm.actor.apply(params["actor"], seen.observation).mean)
    np.testing.assert_allclose(greedy, [2 * mode[0], 0.5 + 0.5 * mode[1]], rtol=1e-5)


def test_discrete_actions_are_refused():
    with pytest.raises(TesseraError, match=r"sac needs continuous actions.*try dqn, ppo or a2c"):
        SAC().bind(Spec((3,), "float32", Discrete(2)))


REPLAYED = SAC(
    unroll=4, draws=3, batch=48, capacity=480, warmup=2, widths=(8,), learning_rate=0.01, actor_rate=0.02, polyak=0.1,
    prioritised=True, n_step=3, actor_priorities=True, max_gradient_norm=1.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def on_one_device() -> Any:
    with jax.enable_x64(True):
        before, after, _ = run(REPLAYED, policies.get("fused", devices=1), env=PENDULUM)
    for name in ("actor", "critic", "temperature"):
        assert furthest(before.params[name], after.params[name]) > MOVED
    return after


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("policy", REPLAY_POLICIES)
def test_every_policy_gives_the_params_of_fused(policy, on_one_device):
    assert_same_state(REPLAYED, policy, on_one_device, PENDULUM)
