"""Losses and targets: by hand and against rlax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from tessera.maths import losses

CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_the_clipped_surrogate_matches_rlax(wrap):
    new, old, advantage = normal(0, 50), normal(1, 50), normal(2, 50)
    got = jnp.mean(wrap(losses.ppo_clip)(new, old, advantage, 0.2))
    np.testing.assert_allclose(got, rlax.clipped_surrogate_pg_loss(jnp.exp(new - old), advantage, 0.2), **CLOSE)


def test_the_surrogate_has_no_gradient_beyond_the_clip_on_the_good_side_only():
    loss_gradient = jax.grad(lambda x, a: losses.ppo_clip(x, jnp.zeros(()), a, 0.2))
    assert float(loss_gradient(jnp.log(1.5), 1.0)) == 0.0
    assert float(loss_gradient(jnp.log(1.5), -1.0)) == pytest.approx(1.5)
    assert float(loss_gradient(jnp.log(0.5), -1.0)) == 0.0
    assert float(loss_gradient(jnp.log(0.5), 1.0)) == pytest.approx(-0.5)


def test_huber_matches_rlax_and_its_slope_is_bounded():
    x = jnp.linspace(-4, 4, 33)
    np.testing.assert_allclose(losses.huber(x, 1.5), rlax.huber_loss(x, 1.5), **CLOSE)
    assert float(jnp.max(jnp.abs(jax.vmap(jax.grad(lambda y: losses.huber(y, 1.5)))(x)))) == pytest.approx(1.5)


def test_the_value_loss_matches_a_value_computed_by_hand():
    assert float(losses.value_loss(jnp.array(3.0), jnp.array(1.0))) == 2.0


def test_dueling_keeps_the_value_as_the_mean_over_actions():
    value, advantage = normal(0, 7), normal(1, 7, 3)
    q = losses.dueling(value, advantage)
    np.testing.assert_allclose(jnp.mean(q, -1), value, **CLOSE)
    np.testing.assert_allclose(q[:, 1] - q[:, 0], advantage[:, 1] - advantage[:, 0], **CLOSE)


def test_entropies_match_values_computed_by_hand():
    np.testing.assert_allclose(losses.categorical_entropy(jnp.zeros((2, 4))), [np.log(4)] * 2, **CLOSE)
    forbidden = jnp.array([0.0, 0.0, -jnp.inf])
    np.testing.assert_allclose(losses.categorical_entropy(forbidden), np.log(2), **CLOSE)
    assert jnp.all(jnp.isfinite(jax.grad(losses.categorical_entropy)(forbidden)))
    np.testing.assert_allclose(losses.gaussian_entropy(jnp.zeros(2)), np.log(2 * np.pi * np.e), **CLOSE)


def test_the_kl_estimate_is_zero_for_equals_and_unbiased_for_small_changes():
    p, q = jnp.log(jnp.array([0.5, 0.3, 0.2])), jnp.log(jnp.array([0.4, 0.4, 0.2]))
    assert not jnp.any(losses.kl_estimate(p, p))
    got = jnp.sum(jnp.exp(p) * losses.kl_estimate(q, p))
    np.testing.assert_allclose(got, jnp.sum(jnp.exp(p) * (p - q)), **CLOSE)


def test_kl_divergences_by_hand_and_by_sampling():
    p, q = np.asarray([0.2, 0.3, 0.5]), np.asarray([0.6, 0.3, 0.1])
    expected = float((p * np.log(p / q)).sum())
    assert float(losses.categorical_kl(jnp.log(p), jnp.log(q))) == pytest.approx(expected, rel=1e-5)
    assert float(losses.categorical_kl(jnp.log(p) + 3, jnp.log(p))) == pytest.approx(0, abs=1e-6)
    # N(1, 2) from N(0, 1): log(1 / 2) + (4 + 1) / 2 - 1 / 2
    found = losses.gaussian_kl(jnp.ones(2), jnp.full(2, np.log(2.0)), jnp.zeros(2), jnp.zeros(2))
    assert float(found) == pytest.approx(2 * (2 - np.log(2.0)), rel=1e-5)


@pytest.mark.parametrize("forbidden", [-1e9, -np.inf])
def test_a_forbidden_choice_adds_nothing_to_a_divergence_nor_to_its_gradient(forbidden):
    logits, other = jnp.asarray([0.5, -0.5, forbidden]), jnp.asarray([-1.0, 1.0, forbidden])
    value, gradient = jax.value_and_grad(losses.categorical_kl)(logits, other)
    without, gradient_without = jax.value_and_grad(losses.categorical_kl)(logits[:2], other[:2])
    assert float(value) == pytest.approx(float(without), rel=1e-5)
    np.testing.assert_allclose(gradient, [*gradient_without, 0.0], rtol=1e-5, atol=1e-7)
