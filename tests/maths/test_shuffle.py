"""Permutations without a sort: bijections, uniform, and without memory of who was next to whom."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tessera.maths.shuffle import permutation


def many(n, count, seed=7):
    keys = jax.random.split(jax.random.key(seed), count)
    return np.asarray(jax.jit(jax.vmap(lambda key: permutation(key, n)))(keys))


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 8, 13, 100, 1000, 1009, 1024, 8192])
def test_it_is_a_permutation_for_every_key(n):
    drawn = many(n, 50)
    assert drawn.dtype == np.int32
    np.testing.assert_array_equal(np.sort(drawn, axis=1), np.tile(np.arange(n), (50, 1)))


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_all_permutations_of_a_few_elements_are_equally_likely(n):
    drawn = many(n, 12_000)
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(counts) == math.factorial(n)
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("n", [8, 24, 100, 101, 1024])
def test_every_position_is_equally_likely_for_an_element(n):
    drawn = many(n, 6_000)
    for i in (0, 1, n // 2, n - 1):
        bins = np.bincount(drawn[:, i] * min(n, 32) // n)
        width = np.bincount(np.arange(n) * min(n, 32) // n)
        assert stats.chisquare(bins, 6_000 * width / n).pvalue > 1e-4


@pytest.mark.parametrize("n", [7, 8, 16, 100, 101, 1024, 8192])
def test_neighbours_forget_each_other(n):
    drawn = many(n, max(20_000 // n, 40) * 10)
    gaps = (drawn[:, 1:] - drawn[:, :-1]) % n
    counts = np.bincount(gaps.ravel(), minlength=n)[1:]
    assert stats.chisquare(counts).pvalue > 1e-4
    assert abs(np.corrcoef(drawn[:, :-1].ravel(), drawn[:, 1:].ravel())[0, 1]) < 2 / n + 0.01


@pytest.mark.parametrize("n", [6, 8])
def test_every_pair_lands_anywhere_with_equal_probability(n):
    drawn = many(n, 20_000)
    least = 1.0
    for i in range(n):
        for j in range(i):
            counts = np.bincount(drawn[:, i] * n + drawn[:, j], minlength=n * n).reshape(n, n)
            assert not np.diag(counts).any()
            least = min(least, stats.chisquare(counts[~np.eye(n, dtype=bool)]).pvalue)
    assert least * n * (n - 1) / 2 > 1e-3


def test_different_keys_give_different_permutations_and_the_same_key_the_same():
    drawn = many(100, 200)
    assert len(np.unique(drawn, axis=0)) == 200
    np.testing.assert_array_equal(drawn, many(100, 200))


def test_it_can_be_traced_in_a_scan_over_a_vmap():
    def body(carry, key):
        return carry, jax.vmap(lambda k: permutation(k, 12))(jax.random.split(key, 3))

    keys = jax.random.split(jax.random.key(0), 4)
    _, drawn = jax.lax.scan(body, 0, keys)
    np.testing.assert_array_equal(np.sort(drawn, -1), np.broadcast_to(np.arange(12), (4, 3, 12)))
    np.testing.assert_array_equal(drawn[2, 1], permutation(jax.random.split(keys[2], 3)[1], 12))


def test_it_does_not_sort():
    text = jax.jit(lambda key: permutation(key, 1024)).lower(jax.random.key(0)).as_text()
    assert "sort" not in text
    assert jnp.issubdtype(permutation(jax.random.key(0), 4).dtype, jnp.integer)
