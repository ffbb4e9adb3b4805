"""Distributions: what they draw, and the densities they state."""

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from tessera.envs.base import Box, Discrete, MultiDiscrete
from tessera.maths.distributions import (
    Categorical,
    DiagonalGaussian,
    MultiCategorical,
    for_actions,
    head_size,
    inverse_cdf,
)

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.mark.parametrize("n", [2, 5, 32, 33, 100])
def test_categorical_draws_follow_the_probabilities(n):
    logits = jax.random.normal(jax.random.key(n), (n,))
    drawn = Categorical(jnp.broadcast_to(logits, (20_000, n))).sample(jax.random.key(0))
    assert drawn.dtype == jnp.int32
    counts = np.bincount(drawn, minlength=n)
    assert stats.chisquare(counts, 20_000 * special.softmax(np.asarray(logits, np.float64))).pvalue > 1e-3


@pytest.mark.parametrize("unroll", [False, True])
@pytest.mark.parametrize("n", [4, 40])
def test_the_inverse_cdf_is_right_at_its_edges(n, unroll):
    weights = np.zeros(n, np.float32)
    weights[1], weights[2] = 0.25, 0.75
    almost = np.nextafter(np.float32(1), np.float32(0))
    uniform = np.array([0.0, np.nextafter(np.float32(0.25), np.float32(0)), 0.25, almost, 1.0], np.float32)
    got = inverse_cdf(jnp.broadcast_to(weights, (5, n)), uniform, unroll)
    np.testing.assert_array_equal(got, [1, 1, 2, 2, 2])
    assert int(inverse_cdf(jnp.zeros(n), jnp.float32(0.5), unroll)) == 0


@pytest.mark.parametrize("n", [18, 77])
def test_an_action_of_probability_zero_is_never_drawn(n):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(5_000, n)).astype(np.float32) * 10
    forbidden = rng.random((5_000, n)) < 0.6
    forbidden[:, n // 2] = False
    logits[forbidden] = -np.inf
    drawn = np.asarray(jax.jit(lambda x, k: Categorical(x).sample(k))(logits, jax.random.key(3)))
    assert ((drawn >= 0) & (drawn < n)).all()
    assert not forbidden[np.arange(5_000), drawn].any()


def test_drawing_under_vmap_gives_what_each_key_gives_alone():
    logits = jax.random.normal(jax.random.key(0), (10, 6))
    keys = jax.random.split(jax.random.key(1), 10)
    together = jax.vmap(lambda x, k: Categorical(x).sample(k))(logits, keys)
    np.testing.assert_array_equal(together, [Categorical(x).sample(k) for x, k in zip(logits, keys, strict=True)])


def test_categorical_densities_match_distrax():
    logits = 3 * jax.random.normal(jax.random.key(0), (8, 5))
    action = jnp.arange(8) % 5
    ours, theirs = Categorical(logits), distrax.Categorical(logits)
    np.testing.assert_allclose(ours.log_prob(action), theirs.log_prob(action), **CLOSE)
    np.testing.assert_allclose(ours.entropy(), theirs.entropy(), **CLOSE)
    np.testing.assert_array_equal(ours.mode(), theirs.mode())


def test_log_probabilities_stay_finite_for_extreme_logits_and_so_do_their_gradients():
    def log_prob(logits):
        return Categorical(logits).log_prob(jnp.array(1))

    extreme = jnp.array([1e4, -1e4, 0.0])
    assert float(log_prob(extreme)) == -2e4
    for logits in (extreme, jnp.array([1.0, 2.0, -jnp.inf])):
        assert jnp.all(jnp.isfinite(jax.grad(log_prob)(logits)))


def test_a_multicategorical_is_its_parts_side_by_side():
    logits = jax.random.normal(jax.random.key(0), (4, 2 + 3 + 4))
    whole = MultiCategorical(logits, (2, 3, 4))
    parts = [Categorical(x) for x in jnp.split(logits, [2, 5], axis=-1)]
    action = whole.sample(jax.random.key(1))
    assert action.shape == (4, 3)
    assert action.dtype == jnp.int32
    want = sum(p.log_prob(action[:, i]) for i, p in enumerate(parts))
    np.testing.assert_allclose(whole.log_prob(action), want, **CLOSE)
    np.testing.assert_allclose(whole.entropy(), sum(p.entropy() for p in parts), **CLOSE)
    np.testing.assert_array_equal(whole.mode(), jnp.stack([p.mode() for p in parts], -1))


def test_the_choices_of_a_multicategorical_are_independent():
    logits = jnp.broadcast_to(jnp.array([0.0, 1.0, 0.5, -0.5, 0.0]), (20_000, 5))
    drawn = np.asarray(MultiCategorical(logits, (2, 3)).sample(jax.random.key(0)))
    counts = np.bincount(drawn[:, 0] * 3 + drawn[:, 1], minlength=6)
    joint = np.outer(jax.nn.softmax(logits[0, :2]), jax.nn.softmax(logits[0, 2:])).ravel().astype(np.float64)
    assert stats.chisquare(counts, 20_000 * joint / joint.sum()).pvalue > 1e-3


def test_gaussian_densities_match_scipy_and_draws_have_the_stated_moments():
    mean, log_std = jnp.array([1.0, -2.0]), jnp.array([0.3, -1.0])
    one = DiagonalGaussian(mean, log_std, (2,))
    action = jnp.array([0.5, -1.0])
    want = stats.norm(np.asarray(mean), np.exp(log_std)).logpdf(action).sum()
    np.testing.assert_allclose(one.log_prob(action), want, **CLOSE)
    np.testing.assert_allclose(one.entropy(), stats.norm(0, np.exp(log_std)).entropy().sum(), **CLOSE)
    many = DiagonalGaussian(jnp.broadcast_to(mean, (20_000, 2)), jnp.broadcast_to(log_std, (20_000, 2)), (2,))
    drawn = many.sample(jax.random.key(0))
    np.testing.assert_allclose(drawn.mean(0), mean, atol=0.05)
    np.testing.assert_allclose(drawn.std(0), jnp.exp(log_std), rtol=0.03)


@pytest.mark.parametrize(
    ("actions", "size", "shape"),
    [
        (Discrete(4), 4, ()),
        (MultiDiscrete((2, 3)), 5, (2,)),
        (Box((), (-1.0,), (1.0,)), 2, ()),
        (Box((2, 3), (-1.0,) * 6, (1.0,) * 6), 12, (2, 3)),
    ],
)
@pytest.mark.parametrize("batch", [(), (7,), (2, 5)])
def test_every_action_space_has_a_distribution_of_its_shape(actions, size, shape, batch):
    assert head_size(actions) == size
    distribution = for_actions(actions, jnp.zeros((*batch, size)))
    action = distribution.sample(jax.random.key(0))
    assert action.shape == (*batch, *shape)
    assert distribution.mode().shape == (*batch, *shape)
    assert distribution.log_prob(action).shape == batch
    assert distribution.entropy().shape == batch


def test_the_head_of_a_box_is_means_then_deviations():
    made = for_actions(Box((2,), (-1.0,) * 2, (1.0,) * 2), jnp.array([1.0, 2.0, 3.0, 4.0]))
    np.testing.assert_array_equal(made.mean, [1.0, 2.0])
    np.testing.assert_array_equal(made.log_std, [3.0, 4.0])
