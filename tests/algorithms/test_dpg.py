"""DPG: every flag by hand, and the same results under every policy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parity.matrix import MOVED, REPLAY_POLICIES, assert_same_state, furthest, run

from tessera import DPG, DQN, Box, Discrete, Spec, TesseraError, Timestep, Transition, View, policies
from tessera.algorithms.contract import Clock, State, Step
from tessera.algorithms.parts.n_step_windows import Row
from tessera.networks import action_range
from tessera.program.exchange import Shards

PENDULUM = "gymnax:Pendulum-v1"
SOLVED = -200.0
INF = float("inf")
BOX = Box((2,), (-2.0, 0.0), (2.0, 1.0))
HALF = np.asarray([2.0, 0.5])
"""Half the width of the range of each number of an action."""


def made(spec: Spec = Spec((3,), "float32", BOX), **flags: Any) -> tuple[DPG, Any]:  # noqa: B008
    """A bound algorithm and its params."""
    algorithm = DPG(widths=(8,), **flags).bind(spec)
    algorithm.check()
    return algorithm, algorithm.init(jax.random.key(0))


def rows_of(spec: Spec, n: int = 6, seed: int = 1) -> Row:
    """Rows of noise; the bootstrap counts 0.9 of itself."""
    keys = jax.random.split(jax.random.key(seed), 4)
    seen = [jax.random.uniform(k, (n, *spec.observation_shape)).astype(spec.observation_dtype) for k in keys[:2]]
    action = jax.random.uniform(keys[2], (n, *BOX.shape))
    return Row(seen[0], action, jax.random.normal(keys[3], (n,)), jnp.full(n, 0.9), seen[1])


def view_of(params: Any, applies: int = 0, target: Any = None) -> View:
    return View(params, params if target is None else target, (), Clock(jnp.int32(applies), jnp.int32(100)))


def seeing(observation: jax.Array) -> Timestep:
    nothing = jnp.zeros((), bool)
    return Timestep(observation, jnp.zeros(()), nothing, nothing, None)


def saying(params: Any, *values: float) -> Any:
    """Params whose critics say the same of every action: the first value, the second."""
    critic = jax.tree.map(jnp.zeros_like, params["critic"])
    for k, value in enumerate(values):
        critic["params"][f"value_{k}"]["bias"] = jnp.full(1, value)
    return {**params, "critic": critic}


KEYS = jax.random.split(jax.random.key(0), 6)


def equal(a: Any, b: Any) -> list[bool]:
    """Which leaves are the same to the last bit."""
    return [bool(np.all(x == y)) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]


@pytest.mark.parametrize(("twin", "values", "worth"), [(True, (3.0, 2.0), 2.0), (False, (3.0,), 3.0)])
def test_of_two_critics_the_lower_says_what_targets_are_worth(twin, values, worth):
    algorithm, params = made(twin=twin)
    rows = rows_of(algorithm.world)
    target = algorithm.targets(saying(params, *values), rows, KEYS)
    np.testing.assert_allclose(target, rows.reward + 0.9 * worth, rtol=1e-6)


def test_each_critic_learns_from_its_own_error_and_both_count():
    algorithm, params = made()
    rows = rows_of(algorithm.world)._replace(reward=jnp.ones(6))
    online, target = saying(params, 3.0, 2.0), saying(params, 2.0, 4.0)  # so that values should be 1 + 0.9 * 2 = 2.8
    gradients, (metrics, error) = algorithm.loss_gradient(view_of(online, 0, target), rows, 1.0, KEYS)
    np.testing.assert_allclose(error, 0.5, rtol=1e-5)  # the mean of 0.2 and 0.8
    np.testing.assert_allclose(algorithm.row_errors(online, target, rows), error, rtol=1e-5)
    expected = {"loss": 0.5 * (0.04 + 0.64), "actor_loss": -3.0, "q_mean": 2.5, "td_error": 0.5}
    assert {k: float(v) for k, v in metrics.items()} == pytest.approx(expected, rel=1e-5)
    heads = gradients["critic"]["params"]
    np.testing.assert_allclose([heads[f"value_{k}"]["bias"][0] for k in (0, 1)], [0.2, -0.8], rtol=1e-5)


def test_the_actor_climbs_the_first_critic_and_neither_loss_reaches_the_others_params():
    algorithm, params = made(smoothing=0.0)
    rows, scale = rows_of(algorithm.world), jnp.linspace(0.1, 1.0, 6)
    gradients, _ = algorithm.loss_gradient(view_of(params), rows, scale, KEYS)

    def height(actor):
        action = algorithm.actor.apply(actor, rows.observation)
        return (scale * algorithm.critic.apply(params["critic"], rows.observation, action)[:, 0]).mean()

    def squares(critic):
        action = algorithm.actor.apply(params["actor"], rows.bootstrap)
        q_t = algorithm.critic.apply(params["critic"], rows.bootstrap, action).min(-1)
        values = algorithm.critic.apply(critic, rows.observation, rows.action)
        return 0.5 * (scale[:, None] * (values - (rows.reward + 0.9 * q_t)[:, None]) ** 2).sum() / 6

    up, down = jax.grad(height)(params["actor"]), jax.grad(squares)(params["critic"])
    jax.tree.map(lambda g, u: np.testing.assert_allclose(g, -u, rtol=1e-4, atol=1e-6), gradients["actor"], up)
    jax.tree.map(lambda g, d: np.testing.assert_allclose(g, d, rtol=1e-4, atol=1e-6), gradients["critic"], down)


def started(algorithm: DPG, params: Any) -> State:
    return algorithm.start(params)._replace(clock=Clock(jnp.int32(0), jnp.int32(100)))


def ticked(state: State) -> State:
    return state._replace(clock=state.clock._replace(applies=state.clock.applies + 1))


def step_of(algorithm: DPG, state: State, norm: Any = 1.0) -> Step:
    return Step(jnp.asarray(norm), due=algorithm.due(state.clock))


@pytest.mark.parametrize("optimiser", ["adam", "rmsprop", "adagrad"])
def test_a_delayed_actor_moves_at_every_third_gradient_and_else_not_by_a_bit(optimiser):
    algorithm, params = made(actor_delay=3, optimiser=optimiser)
    rows, state = rows_of(algorithm.world), started(algorithm, params)

    @jax.jit
    def step(state: State) -> State:
        view = View(state.params, state.target, (), state.clock)
        gradients, _ = algorithm.loss_gradient(view, rows, 1.0, KEYS)
        return ticked(algorithm.apply(state, gradients, step_of(algorithm, state)))

    for k in range(5):
        before, state = state, step(state)
        for name in ("params", "optimizer"):
            after, was = getattr(state, name), getattr(before, name)
            assert not any(equal(after["critic"], was["critic"]))
            assert all(equal(after["actor"], was["actor"])) == (k % 3 != 0)


def test_the_actor_has_a_step_size_of_its_own():
    algorithm, params = made(actor_rate=1e-2, learning_rate=1e-3, anneal=False, actor_delay=1)
    state = started(algorithm, params)
    after = algorithm.apply(state, jax.tree.map(jnp.ones_like, params), step_of(algorithm, state))
    moved = jax.tree.map(lambda new, old: float(jnp.abs(new - old).max()), after.params, params)
    assert max(jax.tree.leaves(moved["actor"])) == pytest.approx(1e-2, rel=1e-3)  # Adam's first step is the rate
    assert max(jax.tree.leaves(moved["critic"])) == pytest.approx(1e-3, rel=1e-3)


def test_without_a_delay_the_actor_goes_on_without_a_gradient():
    algorithm, params = made(actor_delay=1)
    gradients, zeros = jax.tree.map(jnp.ones_like, params), jax.tree.map(jnp.zeros_like, params)
    state = started(algorithm, params)
    state = algorithm.apply(state, gradients, step_of(algorithm, state))
    assert not any(equal(algorithm.apply(state, zeros, step_of(algorithm, state)).params, state.params))


def test_flat_shards_of_the_params_step_as_the_whole_does():
    algorithm, params = made(actor_delay=2, actor_rate=3e-4)
    gradients = jax.tree.map(jnp.ones_like, params)
    shards = Shards(params, 3, tuple(algorithm.parts))
    whole = started(algorithm, params)
    parts = [started(algorithm, jax.tree.map(jnp.asarray, shards.part(params, k))) for k in (0, 1, 2)]
    for _ in range(2):
        step = step_of(algorithm, whole)
        parts = [ticked(algorithm.apply(p, shards.part(gradients, k), step)) for k, p in enumerate(parts)]
        whole = ticked(algorithm.apply(whole, gradients, step))
    joined = shards.join(parts, whole)
    for name in ("params", "target", "optimizer"):
        assert all(equal(getattr(joined, name), getattr(whole, name)))
    for k, part in enumerate(parts):
        assert all(equal(shards.split(whole, k, part), part))


def test_targets_follow_by_a_two_hundredth():
    algorithm, params = made(actor_delay=1, learning_rate=1.0, anneal=False)
    state = started(algorithm, params)
    state = algorithm.apply(state, jax.tree.map(jnp.ones_like, params), step_of(algorithm, state))
    moved = jax.tree.map(lambda t, p: t - p, state.target, params)
    jax.tree.map(lambda m: np.testing.assert_allclose(m, -0.005, rtol=1e-3), moved)


def test_noise_on_target_actions_is_clipped_and_they_stay_within_their_range():
    algorithm, _ = made(smoothing=1e6, smoothing_clip=0.25)
    action = jnp.broadcast_to(jnp.asarray([0.0, 0.9]), (50, 2))
    moved = np.asarray(algorithm.add_target_noise(action, jax.random.split(jax.random.key(0), 50)))
    assert {round(float(x), 4) for x in moved[:, 0]} == {-0.5, 0.5}  # a quarter of half the range
    assert {round(float(x), 4) for x in moved[:, 1]} == {0.775, 1.0}  # and the range ends at 1
    algorithm, _ = made(smoothing=0.2)
    moved = algorithm.add_target_noise(jnp.full((2000, 2), 0.5), jax.random.split(jax.random.key(0), 2000))
    deviation = (moved - 0.5) / HALF
    np.testing.assert_allclose(deviation.std(axis=0), 0.2, rtol=0.1)
    assert float(jnp.abs(deviation).max()) <= 0.5 + 1e-6


def test_noise_on_a_target_belongs_to_the_rows_key_and_not_to_a_place():
    algorithm, params = made()
    rows = rows_of(algorithm.world)
    whole = algorithm.targets(params, rows, KEYS)
    half = algorithm.targets(params, jax.tree.map(lambda x: x[5:2:-1], rows), KEYS[5:2:-1])
    np.testing.assert_allclose(half, whole[5:2:-1], rtol=1e-5)
    assert not np.allclose(algorithm.targets(params, rows, KEYS[::-1]), whole, rtol=1e-5)
    without, _ = made(smoothing=0.0)
    assert algorithm.noisy_loss
    assert not without.noisy_loss
    np.testing.assert_array_equal(without.targets(params, rows, KEYS), algorithm.targets(params, rows, None))
    assert not np.allclose(without.targets(params, rows, KEYS), whole, rtol=1e-5)


@pytest.mark.parametrize("priorities", [False, True])
def test_windows_of_three_steps_sum_rewards_and_actors_say_how_surprising_they_are(priorities):
    algorithm, params = made(n_step=3, gamma=0.9, prioritised=priorities, actor_priorities=priorities, smoothing=0.0)
    params, never = saying(params, 10.0, 8.0), jnp.zeros(4, bool)
    seen, action = jnp.arange(12.0).reshape(4, 3), jnp.arange(8.0).reshape(4, 2) / 8
    end = jnp.asarray([False, False, False, True])
    version = jnp.zeros(4, jnp.int32)
    played = Transition(seen, action, (), jnp.asarray([1.0, 2, 3, 4]), end, never, seen + 3, None, version)
    memory = algorithm.memory(jnp.int32(0))
    experience, after = algorithm.digest(view_of(params), memory, played)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), memory)
    rows = experience.rows  # the first two began before the first step, and do not count
    np.testing.assert_array_equal(experience.valid, [False, False, True, True])
    np.testing.assert_allclose(rows.reward[2:], [1 + 0.9 * 2 + 0.81 * 3, 2 + 0.9 * 3 + 0.81 * 4], rtol=1e-6)
    np.testing.assert_allclose(rows.action[2:], action[:2])
    target = algorithm.targets(params, rows, None)[2:]
    np.testing.assert_allclose(target, [5.23 + 0.729 * 8, 7.94], rtol=1e-6)
    if priorities:  # the means over critics of |10 - target| and |8 - target|
        expected = (np.abs(10 - target) + np.abs(8 - target)) / 2 + 1e-3
        np.testing.assert_allclose(experience.priority[2:], expected, rtol=1e-5)
    else:
        assert experience.priority is None


@pytest.mark.parametrize("bounds", [(-2.0, 2.0), (0.0, 1.0), (-INF, INF), (5.0, INF)])
def test_actions_are_any_before_the_first_gradient_and_then_the_actors_with_noise(bounds):
    spec = Spec((3,), "float32", Box((1,), *[(b,) for b in bounds]))
    algorithm, params = made(spec, noise=0.1)
    middle, half = (float(x[0]) for x in action_range(spec))
    keys = jax.random.split(jax.random.key(3), 2000)

    def played(applies: int, params: Any, algorithm: DPG = algorithm) -> np.ndarray:
        view, timestep = view_of(params, applies), seeing(jnp.ones(3))
        return np.asarray(jax.vmap(lambda k: algorithm.act(view, (), timestep, k)[0][0])(keys))

    params["actor"] = jax.tree.map(jnp.zeros_like, params["actor"])  # which acts in the middle of the range
    anything = (played(0, params) - middle) / half
    np.testing.assert_allclose([anything.mean(), anything.std()], [0, 1 / np.sqrt(3)], atol=0.05)
    assert -1 <= anything.min() < -0.99 < 0.99 < anything.max() <= 1
    noisy = (played(1, params) - middle) / half
    np.testing.assert_allclose([noisy.mean(), noisy.std()], [0, 0.1], atol=0.01)
    wild = (played(1, params, made(spec, noise=10.0)[0]) - middle) / half
    assert (wild.min(), wild.max()) == (-1, 1)
    greedy, _ = algorithm.greedy(view_of(params, 1), (), seeing(jnp.ones(3)), keys[0])
    np.testing.assert_allclose(greedy, [middle], rtol=1e-6)
    np.testing.assert_allclose(played(1, params, made(spec, noise=0.0)[0]), middle, rtol=1e-6)


def test_images_are_read_by_a_convolutional_torso():
    algorithm, params = made(Spec((10, 10, 2), "uint8", BOX))
    given = (view_of(params), rows_of(algorithm.world, 2), 1.0, KEYS[:2])
    gradients, (metrics, error) = jax.eval_shape(algorithm.loss_gradient, *given)
    assert jax.tree.map(lambda g: g.shape, gradients) == jax.tree.map(lambda p: p.shape, params)
    assert [name for name in gradients["critic"]["params"] if "Conv" in name] == ["ConvTorso_0", "ConvTorso_1"]
    assert error.shape == (2,)
    assert metrics["loss"].shape == ()


def test_discrete_actions_are_refused_and_others_are_named():
    with pytest.raises(TesseraError, match=r"dpg needs continuous actions.*try dqn, ppo or a2c"):
        DPG().bind(Spec((3,), "float32", Discrete(2)))
    with pytest.raises(TesseraError, match="try dpg"):
        DQN().bind(Spec((3,), "float32", BOX))


@pytest.mark.parametrize(("field", "value"), [("actor_delay", 0), ("noise", -0.1), ("smoothing_clip", -1.0)])
def test_values_that_make_no_sense_are_refused_by_the_name_of_the_flag(field, value):
    with pytest.raises(TesseraError, match=f"--{field.replace('_', '-')} {value}: must be at least"):
        made(**{field: value})


REPLAYED = DPG(
    unroll=4, draws=3, batch=48, capacity=480, warmup=2, widths=(8,), learning_rate=0.01, polyak=0.1, prioritised=True,
    n_step=3, actor_priorities=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def on_one_device() -> Any:
    with jax.enable_x64(True):
        before, after, _ = run(REPLAYED, policies.get("fused", devices=1), env=PENDULUM)
    for part in ("params", "target"):
        for name in ("actor", "critic"):
            assert furthest(getattr(before, part)[name], getattr(after, part)[name]) > MOVED
    return after


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("policy", REPLAY_POLICIES)
def test_every_policy_gives_the_params_of_fused(policy, on_one_device):
    assert_same_state(REPLAYED, policy, on_one_device, PENDULUM)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_dpg_solves_pendulum_whatever_the_seed(seed: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tessera", "train", "dpg", PENDULUM, "--steps", "100000"]
    command += ["--seed", str(seed), "--run-dir", str(tmp_path / "run")]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment.pop("XLA_FLAGS", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["eval_episodes"] >= 100
    assert summary["eval_return_mean"] >= SOLVED, summary
