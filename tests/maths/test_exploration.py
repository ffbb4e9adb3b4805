"""Schedules and epsilon-greedy actions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tessera.maths.exploration import apex_epsilon, epsilon_greedy, linear


def test_a_linear_schedule_ends_at_its_fraction_and_stays():
    got = linear(jnp.array([0.0, 0.25, 0.5, 1.0, 2.0]), 1.0, 0.1, fraction=0.5)
    np.testing.assert_allclose(got, [1.0, 0.55, 0.1, 0.1, 0.1], rtol=1e-6)


def test_epsilon_greedy_is_greedy_at_zero_and_uniform_at_one():
    q = jax.random.normal(jax.random.key(0), (6_000, 6))
    np.testing.assert_array_equal(epsilon_greedy(jax.random.key(1), q, 0.0), jnp.argmax(q, -1))
    counts = np.bincount(epsilon_greedy(jax.random.key(1), q, 1.0), minlength=6)
    assert stats.chisquare(counts).pvalue > 1e-3


def test_every_other_action_is_taken_as_often_as_epsilon_says():
    q = jnp.broadcast_to(jnp.array([0.0, 3.0, 1.0, 2.0]), (40_000, 4))
    drawn = jax.jit(epsilon_greedy)(jax.random.key(2), q, 0.2)
    assert drawn.dtype == jnp.int32
    counts = np.bincount(drawn, minlength=4)
    assert stats.chisquare(counts, 40_000 * np.array([0.05, 0.85, 0.05, 0.05])).pvalue > 1e-3


def test_each_row_may_have_an_epsilon_of_its_own():
    q = jnp.zeros((2, 5000, 3)).at[..., 2].set(1.0)
    drawn = epsilon_greedy(jax.random.key(0), q, jnp.array([[0.0], [0.9]]))
    assert (drawn[0] == 2).all()
    assert float((drawn[1] == 2).mean()) == pytest.approx(0.4, abs=0.03)


def test_apex_rates_are_those_of_the_paper():
    got = apex_epsilon(jnp.arange(8), 8)
    np.testing.assert_allclose(got, [0.4 ** (1 + i) for i in range(8)], rtol=1e-5)
    assert float(apex_epsilon(0, 1)) == pytest.approx(0.4)
