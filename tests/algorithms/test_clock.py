from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tessera import Clock

EDGES = [0, 1, 99, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 5, 2**40 + 12345, 2**62 + 7]


def clock(applied: int, horizon: float = 100.0) -> Clock:
    return Clock(jnp.int32(0), jnp.asarray(horizon), jnp.int32(0)).at(applied)


@pytest.mark.parametrize("applied", EDGES)
def test_a_clock_shows_what_it_was_set_to_and_one_more_after_the_next_gradient(applied):
    assert clock(applied).applied() == applied
    after = jax.jit(Clock.next)(clock(applied))
    assert after.applied() == applied + 1
    assert after.applies.dtype == after.wraps.dtype == np.int32


@pytest.mark.parametrize("applied", EDGES)
@pytest.mark.parametrize("period", [1, 2, 3, 250, 8192, 10_000, 65_537, 2**31 - 1])
def test_a_period_is_counted_exactly_at_any_time(applied, period):
    assert int(clock(applied).modulo(period)) == applied % period


@pytest.mark.parametrize("applied", EDGES)
def test_the_share_of_the_run_that_is_over_is_right_at_any_time(applied):
    assert float(clock(applied, 2.0 * applied + 2).progress) == pytest.approx(applied / (2 * applied + 2), rel=1e-6)
    assert float(clock(applied, applied / 2).progress) == min(applied, 1)


def test_within_31_bits_the_share_is_that_of_integers_to_the_bit():
    numbers = np.random.default_rng(0).integers(0, 2**31, (1000, 2)).astype(np.int32)
    applies, horizon = jnp.asarray(numbers[:, 0]), jnp.asarray(numbers[:, 1])
    now = Clock(applies, horizon.astype(float), jnp.zeros(1000, jnp.int32))
    np.testing.assert_array_equal(now.progress, jnp.minimum(applies / jnp.maximum(horizon, 1), 1.0))


@pytest.mark.usefixtures("x64")
def test_where_numbers_are_wide_the_share_is_too():
    assert float(clock(10**8, 10**9 + 7).progress) == 10**8 / (10**9 + 7)


@pytest.mark.parametrize("applied", EDGES)
def test_only_a_run_that_has_just_begun_is_fresh(applied):
    assert bool(clock(applied).fresh) == (applied == 0)


@pytest.mark.parametrize("applied", EDGES[3:])
@pytest.mark.parametrize("moved", [-70_000, -6, -1, 0, 1, 6, 70_000])
def test_a_peers_word_says_how_far_all_have_come(applied, moved):
    heard = clock(applied + moved).applies
    assert jax.jit(Clock.near)(clock(applied), heard).applied() == applied + moved
