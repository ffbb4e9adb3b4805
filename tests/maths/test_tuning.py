"""Population-based training: ranges, and who copies whom."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tessera.maths.tuning import FACTORS, Range, choose_parents, recombination_weights


def generator() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0.9:1", Range(0.9, 1.0)), ("log:1e-5:1e-2", Range(1e-5, 1e-2, log=True)), ("-1:2", Range(-1.0, 2.0))],
)
def test_a_range_is_read_as_it_is_written(text: str, expected: Range) -> None:
    assert Range.parse(text) == expected
    assert Range.parse(str(expected)) == expected


@pytest.mark.parametrize("text", ["", "1", "1:2:3", "a:b", "2:1", "1:1", "log:0:1", "log:1", "nan:1", "0:inf"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"low:high|below|logarithm"):
        Range.parse(text)


def test_values_are_drawn_evenly_or_evenly_in_their_logarithm() -> None:
    random = generator()
    even = np.array([Range(2.0, 4.0).draw(random) for _ in range(4000)])
    assert (even.min(), even.max()) == pytest.approx((2, 4), abs=0.01)
    assert even.mean() == pytest.approx(3, abs=0.05)
    logs = np.log10([Range(1e-4, 1.0, log=True).draw(random) for _ in range(4000)])
    assert (logs.min(), logs.max()) == pytest.approx((-4, 0), abs=0.02)
    assert logs.mean() == pytest.approx(-2, abs=0.1)


def test_a_perturbed_value_is_a_fifth_more_or_less_and_one_in_four_is_drawn_anew() -> None:
    random, wide = generator(), Range(1e-6, 1.0, log=True)
    values = [wide.perturb(0.01, random) for _ in range(4000)]
    near = [sum(math.isclose(v, 0.01 * factor, rel_tol=1e-6) for v in values) for factor in FACTORS]
    assert sum(near) / 4000 == pytest.approx(0.75, abs=0.03)
    assert near[0] / sum(near) == pytest.approx(0.5, abs=0.03)
    narrow = Range(0.009, 0.011)
    assert all(0.009 - 1e-8 <= narrow.perturb(0.01, random) <= 0.011 + 1e-8 for _ in range(100))


def test_the_worst_go_on_from_the_best() -> None:
    scores = [5.0, 1.0, 9.0, 3.0, 2.0, 8.0, 4.0, 6.0, 7.0, 0.0]
    drawn = [choose_parents(scores, 0.2, np.random.default_rng(seed)) for seed in range(50)]
    for parents in drawn:
        assert [k for k in range(10) if parents[k] != k] == [1, 9]
        assert {parents[1], parents[9]} <= {2, 5}
    assert {parents[1] for parents in drawn} == {2, 5}


def test_one_copies_where_a_share_is_less_than_one_member() -> None:
    assert choose_parents([1.0, 2.0, 3.0], 0.2, generator()) == [2, 1, 2]
    assert choose_parents([1.0, 2.0], 0.2, generator()) == [1, 1]
    assert choose_parents([1.0], 0.2, generator()) == [0]


def test_who_is_not_worse_stays() -> None:
    assert choose_parents([500.0] * 8, 0.25, generator()) == list(range(8))
    assert choose_parents([500.0] * 7 + [499.0], 0.25, generator())[7] in (0, 1)


def test_the_broken_always_copy_and_the_unknown_never() -> None:
    broken = -math.inf
    parents = choose_parents([broken, 3.0, broken, 1.0, broken, 2.0, broken, 0.5], 0.2, generator())
    assert parents == [1, 1, 1, 3, 1, 5, 1, 7] or {parents[k] for k in (0, 2, 4, 6)} <= {1, 5}
    assert [parents[k] for k in (1, 3, 5)] == [1, 3, 5]
    assert choose_parents([math.nan, 1.0, 2.0, math.nan], 0.5, generator()) == [0, 2, 2, 3]
    assert choose_parents([broken, math.nan, math.nan], 0.2, generator())[0] in (1, 2)
    assert choose_parents([broken, broken], 0.2, generator()) == [0, 1]
    assert choose_parents([math.nan, math.nan], 0.2, generator()) == [0, 1]


def test_the_better_half_counts_by_the_logarithm_of_its_rank() -> None:
    raw = [math.log(2.5), math.log(2.5) - math.log(2)]
    expected = [0.0, raw[1] / sum(raw), raw[0] / sum(raw), 0.0]
    assert recombination_weights([1.0, 3.0, 4.0, 2.0]) == pytest.approx(expected)
    assert recombination_weights([-math.inf, 1.0, -math.inf, -math.inf]) == [0.0, 1.0, 0.0, 0.0]
    assert recombination_weights([math.nan, 0.0]) == [0.0, 1.0]
    assert sum(recombination_weights([math.nan] * 6)) == pytest.approx(1)
    assert recombination_weights([-math.inf] * 3) == [0.0, 0.0, 0.0]
