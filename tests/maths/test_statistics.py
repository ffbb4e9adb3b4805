"""Moments: against NumPy, merged in any order, over long runs."""

import jax
import jax.numpy as jnp
import numpy as np

from tessera.maths.statistics import Moments, merge, merge_all, moments_of, no_moments, normalise, variance

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def data(seed, *shape):
    return np.random.default_rng(seed).normal(3.0, 2.0, size=shape).astype(np.float32)


def test_moments_match_numpy_over_any_number_of_leading_axes():
    x = data(0, 4, 5, 3)
    got = moments_of(x, axes=2)
    assert float(got.count) == 20
    np.testing.assert_allclose(got.mean, x.mean((0, 1)), **CLOSE)
    np.testing.assert_allclose(variance(got), x.var((0, 1)), **CLOSE)


def test_rows_of_weight_zero_do_not_count_even_if_they_are_nan():
    x = data(1, 6, 2)
    x[2] = np.nan
    weight = np.array([1, 1, 0, 1, 1, 1], np.float32)
    got, want = moments_of(x, weight=weight), moments_of(np.delete(x, 2, axis=0))
    assert float(got.count) == 5
    np.testing.assert_allclose(got.mean, want.mean, **CLOSE)
    np.testing.assert_allclose(got.m2, want.m2, **CLOSE)


def test_merging_in_pairs_or_all_at_once_gives_the_moments_of_the_whole():
    x = data(2, 30, 3)
    parts = [moments_of(part) for part in (x[:3], x[3:20], x[20:])]
    pairs = merge(merge(parts[0], parts[1]), parts[2])
    once = jax.jit(merge_all)(jax.tree.map(lambda *y: jnp.stack(y), *parts))
    for got in (pairs, once):
        assert float(got.count) == 30
        np.testing.assert_allclose(got.mean, x.mean(0), **CLOSE)
        np.testing.assert_allclose(got.m2, x.var(0), **CLOSE)


def test_nothing_is_the_neutral_element():
    some, nothing = moments_of(data(3, 9, 2)), no_moments((2,))
    for got in (merge(some, nothing), merge(nothing, some)):
        for a, b in zip(got, some, strict=True):
            np.testing.assert_allclose(a, b, **CLOSE)
    np.testing.assert_array_equal(merge(nothing, nothing).mean, [0, 0])


def test_float32_keeps_its_accuracy_when_1e9_rows_were_seen():
    start = Moments(jnp.float32(1e9), jnp.float32(5.0), jnp.float32(4.0))
    batch = Moments(jnp.float32(64), jnp.float32(5.0), jnp.float32(4.0))
    end = jax.lax.fori_loop(0, 20_000, lambda _, m: merge(m, batch), start)
    np.testing.assert_allclose(end.mean, 5.0, rtol=1e-6)
    np.testing.assert_allclose(variance(end), 4.0, rtol=1e-6)


def test_a_long_stream_of_small_batches_is_as_accurate_as_one_pass():
    x = data(4, 4000, 16) + 100.0
    end, _ = jax.lax.scan(lambda m, rows: (merge(m, moments_of(rows)), None), no_moments(), x)
    np.testing.assert_allclose(end.mean, x.astype(np.float64).mean(), rtol=1e-5)
    np.testing.assert_allclose(variance(end), x.astype(np.float64).var(), rtol=1e-3)


def test_normalised_data_has_mean_zero_and_variance_one_within_the_clip():
    x = data(5, 500, 2)
    y = normalise(x, moments_of(x))
    np.testing.assert_allclose(y.mean(0), [0, 0], atol=1e-5)
    np.testing.assert_allclose(y.std(0), [1, 1], rtol=1e-4)
    assert float(jnp.abs(normalise(x, moments_of(x), clip=0.5)).max()) == 0.5


def test_nothing_is_scaled_before_anything_was_seen():
    np.testing.assert_allclose(normalise(jnp.array([3.0]), no_moments((1,))), [3.0], **CLOSE)
