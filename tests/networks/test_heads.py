"""Torsos are chosen by observation, and heads give what algorithms need in the right precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tessera.envs.base import Box, Discrete, MultiDiscrete, Spec
from tessera.errors import TesseraError
from tessera.maths.distributions import for_actions, head_size
from tessera.networks import MLP, ActorCritic, QNetwork, torso, torso_name

BOX = Box((2, 2), (-1.0,) * 4, (1.0,) * 4)
OBSERVATIONS = {
    "vector": ((3,), "float32"),
    "scalar": ((), "float32"),
    "table": ((4, 5), "float32"),
    "tiny": ((10, 10, 4), "bool"),
    "image": ((40, 36, 2), "uint8"),
}


def spec_of(kind, actions=Discrete(3), precision="f32"):  # noqa: B008
    shape, dtype = OBSERVATIONS[kind]
    return Spec(shape, dtype, actions, precision)


def observations(spec, *batch):
    x = jax.random.uniform(jax.random.key(5), (*batch, *spec.observation_shape)) * 2
    return (x * 100 if spec.observation_dtype == "uint8" else x).astype(spec.observation_dtype)


def names(params):
    return set(params["params"])


@pytest.mark.parametrize(
    ("shape", "name"),
    [((7,), "mlp"), ((), "mlp"), ((4, 4), "mlp"), ((84, 84, 4), "nature"), ((36, 40, 1), "nature"),
     ((4, 84, 84), "nature"), ((35, 84, 3), "small"),
     ((10, 10, 6), "small"), ((2, 2, 3), "mlp"), ((2, 3, 4, 5), "mlp")],
)  # fmt: skip
def test_the_shape_of_an_observation_chooses_the_torso(shape, name):
    assert torso_name(Spec(shape, "uint8", Discrete(2))) == name


@pytest.mark.parametrize("name", ["nature", "resnet"])
def test_frames_stacked_on_the_first_axis_are_read_as_those_on_the_last(name):
    last = Spec((40, 36, 3), "uint8", Discrete(2))
    first = Spec((3, 40, 36), "uint8", Discrete(2))
    x = jax.random.randint(jax.random.key(0), (2, 40, 36, 3), 0, 255).astype(jnp.uint8)
    params = torso(last, name).init(jax.random.key(1), x)
    np.testing.assert_allclose(
        torso(first, name).apply(params, jnp.moveaxis(x, -1, -3)), torso(last, name).apply(params, x), rtol=1e-5
    )


def test_wrong_names_are_answered_with_the_nearest_right_one():
    spec = spec_of("vector")
    with pytest.raises(TesseraError, match="did you mean 'nature'"):
        torso(spec, "natur")
    with pytest.raises(TesseraError, match="did you mean 'tanh'"):
        torso(spec, activation="tan").init(jax.random.key(0), jnp.zeros(3))
    with pytest.raises(TesseraError, match="at least 36"):
        torso(spec_of("tiny"), "nature")


@pytest.mark.parametrize("kind", OBSERVATIONS)
@pytest.mark.parametrize("make", [ActorCritic, QNetwork])
def test_one_observation_and_any_batch_of_them_give_the_same(kind, make):
    spec = spec_of(kind)
    net = make(spec)
    batch = observations(spec, 2, 3)
    params = net.init(jax.random.key(0), batch[0, 0])
    rows = jax.tree.leaves(net.apply(params, batch))
    mapped = jax.tree.leaves(jax.vmap(jax.vmap(lambda x: net.apply(params, x)))(batch))
    one = jax.tree.leaves(net.apply(params, batch[1, 2]))
    for a, b, c in zip(rows, mapped, one, strict=True):
        assert a.dtype == jnp.float32
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(a[1, 2], c, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("actions", [Discrete(3), MultiDiscrete((2, 4)), BOX])
def test_the_policy_head_fits_the_distribution_of_every_action_space(actions):
    spec = spec_of("vector", actions)
    net = ActorCritic(spec)
    params = net.init(jax.random.key(0), jnp.zeros(3))
    head, value, _ = net.apply(params, jnp.ones((5, 3)))
    assert head.shape == (5, head_size(actions))
    assert value.shape == (5,)
    action = for_actions(actions, head).sample(jax.random.key(0))
    assert for_actions(actions, head).log_prob(action).shape == (5,)
    assert ("log_std" in names(params)) == isinstance(actions, Box)


@pytest.mark.parametrize("kind", ["vector", "tiny"])
def test_policy_and_value_can_be_had_apart_and_neither_computes_the_other(kind):
    spec = spec_of(kind, BOX)
    net = ActorCritic(spec)
    x = observations(spec, 4)
    params = net.init(jax.random.key(0), x[0])
    head, value, _ = net.apply(params, x)
    np.testing.assert_allclose(net.apply(params, x, method="policy")[0], head, rtol=1e-6)
    np.testing.assert_allclose(net.apply(params, x, method="value"), value, rtol=1e-6)
    only_policy = {"params": {k: v for k, v in params["params"].items() if not k.startswith("value")}}
    np.testing.assert_allclose(net.apply(only_policy, x, method="policy")[0], head, rtol=1e-6)
    heads = {"params": {k: v for k, v in params["params"].items() if k != "policy_head"}}
    np.testing.assert_allclose(net.apply(heads, x, method="value"), value, rtol=1e-6)


def test_towers_are_apart_for_vectors_and_shared_for_images_unless_told_otherwise():
    for kind, shared, apart in [
        ("vector", None, True),
        ("tiny", None, False),
        ("vector", True, False),
        ("tiny", False, True),
    ]:
        spec = spec_of(kind)
        params = jax.eval_shape(ActorCritic(spec, shared=shared).init, jax.random.key(0), observations(spec))
        assert ("value_torso" in names(params)) == apart


def test_initial_gains_are_sqrt_2_inside_a_hundredth_for_the_policy_and_one_for_the_value():
    params = ActorCritic(spec_of("vector")).init(jax.random.key(0), jnp.zeros(3))["params"]
    hidden = params["policy_torso"]["Dense_1"]["kernel"]
    np.testing.assert_allclose(hidden.T @ hidden, 2 * jnp.eye(64), atol=1e-4)
    policy, value = params["policy_head"]["kernel"], params["value_head"]["kernel"]
    np.testing.assert_allclose(policy.T @ policy, 1e-4 * jnp.eye(3), atol=1e-8)
    np.testing.assert_allclose(value.T @ value, [[1.0]], rtol=1e-5)


@pytest.mark.parametrize("kind", ["vector", "tiny"])
def test_bf16_computes_in_bfloat16_keeps_float32_parameters_and_hands_out_float32(kind):
    exact, rough = spec_of(kind, BOX), spec_of(kind, BOX, "bf16")
    x = observations(exact, 4)
    params = ActorCritic(rough).init(jax.random.key(0), x[0])
    assert {p.dtype for p in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    got, want = ActorCritic(rough).apply(params, x), ActorCritic(exact).apply(params, x)
    assert all(y.dtype == jnp.float32 for y in got[:2])
    np.testing.assert_allclose(got[1], want[1], rtol=0.05, atol=0.05)
    assert not np.array_equal(got[1], want[1])
    assert "bf16" in jax.jit(ActorCritic(rough).apply).lower(params, x).as_text()


@pytest.mark.parametrize("make", [ActorCritic, QNetwork])
def test_f64_is_float64_throughout(make):
    with jax.enable_x64(True):
        for kind in ("vector", "image"):
            spec = spec_of(kind, Discrete(2), "f64")
            x = observations(spec, 2)
            params = make(spec, widths=(8,)).init(jax.random.key(0), x[0])
            out = make(spec, widths=(8,)).apply(params, x)
            assert {y.dtype for y in jax.tree.leaves((params, out))} == {jnp.dtype("float64")}


def test_a_dueling_network_has_two_streams_with_a_hidden_layer_each():
    net = QNetwork(spec_of("vector"), (16, 8), dueling=True)
    x = jax.random.normal(jax.random.key(1), (4, 3))
    params = net.init(jax.random.key(0), x)
    assert names(params) == {"MLP_0", "value", "value_hidden", "advantage", "advantage_hidden"}
    raised = jax.tree.map(lambda p: p, params)
    raised["params"]["value"]["bias"] = params["params"]["value"]["bias"] + 1.0
    np.testing.assert_allclose(net.apply(raised, x), net.apply(params, x) + 1.0, rtol=1e-4, atol=1e-5)
    raised = jax.tree.map(lambda p: p, params)
    raised["params"]["advantage"]["bias"] = params["params"]["advantage"]["bias"] + 1.0
    np.testing.assert_allclose(net.apply(raised, x), net.apply(params, x), rtol=1e-4, atol=1e-5)


def test_action_values_of_continuous_actions_are_refused_with_the_reason():
    with pytest.raises(TesseraError, match="discrete"):
        QNetwork(spec_of("vector", BOX)).init(jax.random.key(0), jnp.zeros(3))


def test_an_mlp_scales_bytes_and_flattens_the_axes_of_one_observation():
    net = MLP((4,), axes=2)
    x = jax.random.randint(jax.random.key(0), (5, 3, 2), 0, 256).astype(jnp.uint8)
    params = net.init(jax.random.key(0), x)
    np.testing.assert_allclose(net.apply(params, x), net.apply(params, x / 255.0), rtol=1e-4, atol=1e-5)
    assert net.apply(params, x).shape == (5, 4)
