"""Actions that are computed stay within their range, and are valued by networks that have nothing in common."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tessera.envs.base import Box, Discrete, Spec
from tessera.errors import TesseraError
from tessera.networks import ActionCritic, DeterministicActor, action_range

INF, MOST = float("inf"), float(np.finfo(np.float32).max)
BOX = Box((2, 2), (-1.0, 0.0, -3.0, 5.0), (1.0, 4.0, -1.0, 6.0))
OBSERVATIONS = {
    "vector": ((3,), "float32"),
    "scalar": ((), "float32"),
    "tiny": ((10, 10, 4), "bool"),
    "image": ((40, 36, 2), "uint8"),
}


def spec_of(kind="vector", actions=BOX, precision="f32"):
    return Spec(*OBSERVATIONS[kind], actions, precision)


def observations(spec, *batch):
    x = jax.random.uniform(jax.random.key(5), (*batch, *spec.observation_shape)) * 2
    return (x * 100 if spec.observation_dtype == "uint8" else x).astype(spec.observation_dtype)


def pair(spec, **options):
    """An actor and two critics with params: (choose, value), both functions of arrays alone, and the params."""
    x = observations(spec)
    actor, critic = DeterministicActor(spec, (8,), **options), ActionCritic(spec, (8,), critics=2, **options)
    params = actor.init(jax.random.key(0), x), critic.init(jax.random.key(1), x, jnp.zeros(spec.actions.shape))
    return lambda x: actor.apply(params[0], x), lambda x, a: critic.apply(params[1], x, a), params


@pytest.mark.parametrize(
    ("low", "high", "range_"),
    [
        (-2.0, 2.0, (-2, 2)),
        (0.0, 10.0, (0, 10)),
        (-INF, INF, (-1, 1)),
        (5.0, INF, (5, 7)),
        (-INF, 5.0, (3, 5)),
        (-MOST, MOST, (-1, 1)),
    ],
)
def test_a_range_without_bounds_is_two_wide_next_to_the_bound_that_there_is(low, high, range_):
    middle, half = action_range(spec_of(actions=Box((1,), (low,), (high,))))
    assert (middle - half, middle + half) == range_


@pytest.mark.parametrize("bounds", [(-2.0, 2.0), (-INF, INF), (5.0, INF)])
def test_actions_fill_their_range_and_never_leave_it(bounds):
    spec = spec_of(actions=Box((1,), *[(b,) for b in bounds]))
    actor = DeterministicActor(spec, (8,))
    params = actor.init(jax.random.key(0), jnp.zeros(3))
    middle, half = action_range(spec)
    action = actor.apply(params, 1e4 * jax.random.normal(jax.random.key(1), (100, 3)))
    np.testing.assert_allclose([action.min(), action.max()], [(middle - half)[0], (middle + half)[0]], rtol=1e-6)
    still = jax.tree.map(jnp.zeros_like, params)
    still["params"]["action"]["bias"] = jnp.full(1, 0.5)
    np.testing.assert_allclose(actor.apply(still, jnp.ones(3)), middle + half * np.tanh(0.5), rtol=1e-6)


@pytest.mark.parametrize("kind", OBSERVATIONS)
def test_one_observation_and_any_batch_of_them_give_the_same(kind):
    spec = spec_of(kind)
    choose, value, _ = pair(spec)
    x = observations(spec, 2, 3)
    action = choose(x)
    assert (action.shape, action.dtype) == ((2, 3, 2, 2), jnp.float32)
    np.testing.assert_allclose(choose(x[1, 2]), action[1, 2], rtol=1e-4, atol=1e-5)
    values = value(x, action)
    assert (values.shape, values.dtype) == ((2, 3, 2), jnp.float32)
    np.testing.assert_allclose(value(x[1, 2], action[1, 2]), values[1, 2], rtol=1e-4, atol=1e-5)


def test_a_critic_of_one_unit_is_what_it_is_by_hand():
    spec = spec_of(actions=Box((1,), (0.0,), (4.0,)))
    critic = ActionCritic(spec, (1,))
    params = critic.init(jax.random.key(0), jnp.zeros(3), jnp.zeros(1))["params"]
    params["hidden_0"]["SpreadDense_0"] = {"kernel": jnp.asarray([[1.0], [2.0], [3.0], [10.0]]), "bias": jnp.ones(1)}
    params["value_0"] = {"kernel": jnp.full((1, 1), 2.0), "bias": jnp.full(1, -1.0)}
    x = jnp.asarray([1.0, 1.0, -1.0])  # an action of 3 is half the way from the middle to the end of its range
    np.testing.assert_allclose(critic.apply({"params": params}, x, jnp.asarray([3.0])), [2 * (0 + 5 + 1) - 1])
    np.testing.assert_allclose(critic.apply({"params": params}, x, jnp.asarray([0.0])), [-1.0])  # relu(-9) is 0


def test_a_number_that_can_only_be_one_thing_counts_nothing():
    spec = spec_of(actions=Box((2,), (-1.0, 3.0), (1.0, 3.0)))
    choose, value, _ = pair(spec)
    action = choose(jnp.ones(3))
    assert action[1] == 3.0
    assert np.isfinite(value(jnp.ones(3), action)).all()


@pytest.mark.parametrize("kind", ["vector", "tiny"])
def test_critics_share_nothing(kind):
    spec = spec_of(kind)
    _, value, (_, params) = pair(spec)
    x = observations(spec, 4)
    action = jax.random.normal(jax.random.key(3), (4, 2, 2))
    first = jax.grad(lambda p: ActionCritic(spec, (8,), critics=2).apply(p, x, action)[:, 0].sum())(params)["params"]
    touched = {name for name, part in first.items() if any(leaf.any() for leaf in jax.tree.leaves(part))}
    assert touched == {name for name in params["params"] if name.endswith("_0")}
    assert not np.allclose(*value(x, action).T)


@pytest.mark.parametrize("kind", ["vector", "tiny"])
def test_bf16_computes_in_bfloat16_keeps_float32_parameters_and_hands_out_float32(kind):
    exact, rough = spec_of(kind), spec_of(kind, precision="bf16")
    x = observations(exact, 4)
    choose, value, params = pair(rough)
    assert {p.dtype for p in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    want = pair(exact)[0](x)
    assert choose(x).dtype == value(x, want).dtype == jnp.float32
    np.testing.assert_allclose(choose(x), want, rtol=0.05, atol=0.05)
    assert not np.array_equal(choose(x), want)
    for call in (jax.jit(choose).lower(x), jax.jit(value).lower(x, want)):
        assert "bf16" in call.as_text()


def test_f64_is_float64_throughout(x64):
    spec = spec_of("image", precision="f64")
    choose, value, params = pair(spec)
    x = observations(spec, 2)
    assert {y.dtype for y in jax.tree.leaves((params, choose(x), value(x, choose(x))))} == {jnp.dtype("float64")}


@pytest.mark.parametrize("make", [DeterministicActor, ActionCritic])
def test_actions_that_are_not_continuous_are_refused_with_the_reason(make):
    inputs = (jnp.zeros(3), jnp.zeros(()))[: 1 if make is DeterministicActor else 2]
    with pytest.raises(TesseraError, match="must be continuous"):
        make(spec_of(actions=Discrete(2))).init(jax.random.key(0), *inputs)
