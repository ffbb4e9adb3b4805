"""Interquartile means and bootstrap intervals: against values by hand, and SciPy."""

import itertools

import numpy as np
import pytest

from tessera.evaluation.intervals import bootstrap_interval, interquartile_mean, mean, stratified_interval


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ([5.0], 5.0),
        ([1.0, 100.0], 50.5),
        ([0.0, 1.0, 3.0, 1000.0], 2.0),
        ([1000.0, 3.0, 2.0, 1.0, -50.0], 2.0),  # a quarter of five is one
        ([8, 7, 6, 5, 4, 3, 2, 1], 4.5),
    ],
)
def test_the_interquartile_mean_leaves_out_the_lowest_and_the_highest_quarter(x, expected):
    assert interquartile_mean(np.array(x)) == expected


def test_the_interquartile_mean_is_scipys_trimmed_mean():
    scipy = pytest.importorskip("scipy.stats")
    for count in (1, 3, 4, 7, 100):
        x = np.random.default_rng(count).normal(size=(3, count))
        np.testing.assert_allclose(interquartile_mean(x), scipy.trim_mean(x, 0.25, axis=-1), rtol=1e-12)


def test_numbers_that_are_all_the_same_leave_no_doubt():
    assert bootstrap_interval(np.full(20, 7.0)) == (7.0, 7.0)
    assert bootstrap_interval(np.array([3.0])) == (3.0, 3.0)


def test_nothing_has_no_interval():
    assert np.isnan(bootstrap_interval(np.array([]))).all()


def test_percentiles_are_those_of_all_resamples_that_there_are():
    x = np.array([0.0, 1.0, 5.0])
    every = [np.mean(draw) for draw in itertools.product(x, repeat=3)]  # all 27 are as likely
    expected = np.percentile(every, [10, 90])
    np.testing.assert_allclose(bootstrap_interval(x, level=0.8, resamples=100_000), expected)


def test_strata_are_drawn_each_from_within_itself():
    assert stratified_interval([np.zeros(2), np.full(2, 10.0)], mean) == (5.0, 5.0)  # two of each, every time
    low, high = bootstrap_interval(np.array([0.0, 0.0, 10.0, 10.0]))
    assert low < 5.0 < high


def test_an_interval_is_scipys_within_the_noise_of_resampling():
    scipy = pytest.importorskip("scipy.stats")
    x = np.random.default_rng(0).exponential(size=60)
    for statistic in (mean, interquartile_mean):
        theirs = scipy.bootstrap(
            (x,), lambda y, axis, f=statistic: f(np.moveaxis(y, axis, -1)), method="percentile", n_resamples=20_000,
            rng=np.random.default_rng(1),
        ).confidence_interval  # fmt: skip
        np.testing.assert_allclose(bootstrap_interval(x, statistic, resamples=20_000), theirs, atol=0.01)


def test_one_seed_gives_one_interval_whatever_is_drawn_at_a_time(monkeypatch):
    x = np.random.default_rng(0).normal(size=50)
    assert bootstrap_interval(x, seed=3) == bootstrap_interval(x, seed=3)
    assert bootstrap_interval(x, seed=3) != bootstrap_interval(x, seed=4)
    whole = bootstrap_interval(x)
    monkeypatch.setattr("tessera.evaluation.intervals.CHUNK", 1000)
    assert bootstrap_interval(x) == whole


def test_the_interval_covers_what_it_should_about_as_often_as_it_says():
    random = np.random.default_rng(5)
    covered = 0
    for k in range(200):
        low, high = bootstrap_interval(random.normal(size=40), resamples=500, seed=k)
        covered += low <= 0.0 <= high
    assert 0.88 <= covered / 200 <= 0.99
