"""Cores: the equations of LSTM and GRU, steps and sequences alike, forgetting where episodes begin, burn-in."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tessera.envs.base import Box, Discrete, Spec
from tessera.errors import TesseraError
from tessera.networks import ActorCritic, Core, empty_carry, torso

KINDS = ("lstm", "gru")
T, BATCH, INPUTS, WIDTH = 6, 3, 4, 5


def made(kind, seed=0, precision="f32"):
    core = Core(kind, WIDTH, precision)
    x = jax.random.normal(jax.random.key(seed), (T, BATCH, INPUTS))
    carry = jax.tree.map(
        lambda z: z + jax.random.normal(jax.random.key(seed + 1), z.shape),
        empty_carry(kind, WIDTH, precision, (BATCH,)),
    )
    never = jnp.zeros((T, BATCH), bool)
    params = core.init(jax.random.key(seed + 2), x, carry, never, method="unroll")
    params = jax.tree.map(lambda p: p + 0.1 * jax.random.normal(jax.random.key(seed + 3), p.shape), params)
    return core, params, x, carry, never


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def by_hand(kind, params, x, carry):
    p = jax.tree.map(np.asarray, params["params"])
    given = x @ p["inputs"]["kernel"] + p["inputs"]["bias"]
    before = carry[0] @ p["recurrent"]["kernel"] + p["recurrent"]["bias"]
    if kind == "lstm":
        i, f, g, o = np.split(given + before, 4, -1)
        cell = sigmoid(f) * carry[1] + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(cell), cell
    (r, z, n), (r_h, z_h, n_h) = np.split(given, 3, -1), np.split(before, 3, -1)
    z = sigmoid(z + z_h)
    return ((1 - z) * np.tanh(n + sigmoid(r + r_h) * n_h) + z * carry[0],)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_the_published_equations(kind):
    core, params, x, carry, never = made(kind)
    hidden, after = core.apply(params, x[0], carry, never[0])
    want = by_hand(kind, params, np.asarray(x[0]), jax.tree.map(np.asarray, carry))
    for got, expected in zip(after, want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(hidden, after[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_is_its_steps_and_forgets_where_an_episode_begins(kind):
    core, params, x, carry, never = made(kind)
    first = never.at[2, 1].set(True).at[4, :2].set(True).at[0, 2].set(True)
    hidden, carries = core.apply(params, x, carry, first, method="unroll")
    step = carry
    for t in range(T):
        out, step = core.apply(params, x[t], step, first[t])
        np.testing.assert_allclose(hidden[t], out, rtol=1e-5, atol=1e-6)
        for got, want in zip(carries, step, strict=True):
            np.testing.assert_allclose(got[t], want, rtol=1e-5, atol=1e-6)
    fresh, _ = core.apply(params, x[4:, :2], empty_carry(kind, WIDTH, "f32", (2,)), never[4:, :2], method="unroll")
    np.testing.assert_allclose(hidden[4:, :2], fresh, rtol=1e-5, atol=1e-6)
    other, _ = core.apply(params, x, jax.tree.map(lambda z: z + 1, carry), first, method="unroll")
    np.testing.assert_array_equal(hidden[:, 2], other[:, 2])  # begins at once: what was before does not matter
    assert not np.allclose(hidden[1, 0], other[1, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_burn_in_changes_no_value_and_lets_no_gradient_through(kind):
    core, params, x, carry, never = made(kind)

    def late(x, burn_in):
        return core.apply(params, x, carry, never, burn_in, method="unroll")[0][3:].sum()

    np.testing.assert_allclose(late(x, 3), late(x, 0), rtol=1e-6)
    through, stopped = jax.grad(late)(x, 0), jax.grad(late)(x, 3)
    assert np.abs(through[:3]).max() > 1e-4
    np.testing.assert_array_equal(stopped[:3], 0)
    np.testing.assert_allclose(stopped[3:], through[3:], rtol=1e-5)


def test_an_lstm_begins_by_remembering():
    params = Core("lstm", WIDTH).init(
        jax.random.key(0),
        jnp.zeros((1, INPUTS)),
        empty_carry("lstm", WIDTH, "f32"),
        jnp.zeros(1, bool),
        method="unroll",
    )
    np.testing.assert_array_equal(params["params"]["recurrent"]["bias"], np.repeat([0, 1, 0, 0], WIDTH))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("actions", [Discrete(3), Box((2,), (-1.0,) * 2, (1.0,) * 2)])
def test_policy_and_value_of_single_steps_are_those_of_the_sequence(kind, actions, shared):
    net = ActorCritic(Spec((INPUTS,), "float32", actions), (8,), shared=shared, core=kind, core_width=WIDTH)
    assert len(net.empty()) == (1 if shared else 2)
    x = jax.random.normal(jax.random.key(1), (T, INPUTS))
    first = jnp.zeros(T, bool).at[3].set(True)
    params = net.init(jax.random.key(0), x, net.empty(), first)
    head, value, carries = net.apply(params, x, net.empty(), first)
    carry = net.empty()
    for t in range(T):
        before = jax.tree.map(lambda z, t=t: jnp.where(first[t], 0, z), carry)
        np.testing.assert_allclose(net.apply(params, x[t], before, method="value"), value[t], rtol=1e-5, atol=1e-6)
        got, carry = net.apply(params, x[t], carry, first[t], method="policy")
        np.testing.assert_allclose(got, head[t], rtol=1e-5, atol=1e-6)
        now = jax.tree.map(lambda c, t=t: c[t], carries)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), now, carry)


@pytest.mark.parametrize("kind", KINDS)
def test_in_bf16_what_is_remembered_stays_float32(kind):
    core, params, x, carry, never = made(kind, precision="bf16")
    _, carries = core.apply(params, x, carry, never, method="unroll")
    assert {c.dtype for c in carries} == {jnp.dtype("float32")}


def test_a_core_of_another_name_is_refused_with_the_nearest():
    with pytest.raises(TesseraError, match="did you mean 'lstm'"):
        empty_carry("lstn", 8, "f32")


def test_the_residual_torso_has_the_papers_fifteen_convolutions_and_halves_images_three_times():
    spec = Spec((24, 20, 3), "uint8", Discrete(2))
    net = torso(spec, "resnet")
    x = jax.random.randint(jax.random.key(0), (2, 24, 20, 3), 0, 255).astype(jnp.uint8)
    params = net.init(jax.random.key(1), x)["params"]
    kernels = [p["kernel"] for name, p in params.items() if name.startswith("Conv")]
    assert len(kernels) == 15
    assert sum(k.shape[-1] for k in kernels) == 5 * (16 + 32 + 32)
    (dense,) = [p for name, p in params.items() if name.startswith("MLP")]
    assert dense["Dense_0"]["kernel"].shape == (3 * 3 * 32, 256)
    out = net.apply({"params": params}, x)
    assert out.shape == (2, 256)
    np.testing.assert_allclose(out[1], net.apply({"params": params}, x[1]), rtol=1e-3, atol=1e-3)
