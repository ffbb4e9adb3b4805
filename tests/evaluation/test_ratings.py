"""Ratings of players by the games between them."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.evaluation.ratings import Games, rated, rating_intervals


def test_two_players_are_as_far_apart_as_their_points_say():
    """Three of four points are odds of 3, so 400 log10(3) = 191 points of Elo."""
    found = rated(2, [Games(0, 1, 7000, 1000, 2000)])
    assert found[0] - found[1] == pytest.approx(400 * np.log10(3), rel=1e-3)
    assert found.sum() == pytest.approx(0.0, abs=1e-6)


def test_a_player_who_beats_the_winner_is_rated_through_him():
    """0 beats 1 by odds of 3, 1 beats 2 by odds of 3; 0 and 2 never met: odds of 9."""
    found = rated(3, [Games(0, 1, 7500, 0, 2500), Games(1, 2, 7500, 0, 2500)])
    assert found[0] - found[2] == pytest.approx(400 * np.log10(9), rel=1e-3)


def test_who_never_loses_has_a_rating_that_is_finite():
    found = rated(2, [Games(0, 1, 100, 0, 0)])
    assert np.isfinite(found).all()
    assert found[0] > 300


def test_intervals_hold_the_rating_and_shrink_with_games():
    few, many = [Games(0, 1, 12, 4, 4)], [Games(0, 1, 1200, 400, 400)]
    for results in (few, many):
        low, high = rating_intervals(2, results)[0]
        assert low < rated(2, results)[0] < high
    narrow, wide = (np.diff(rating_intervals(2, results)[0])[0] for results in (many, few))
    assert narrow < wide / 5


def test_points_have_an_interval():
    low, high = Games(0, 1, 50, 0, 50).interval()
    assert (low, high) == pytest.approx((0.5 - 0.098, 0.5 + 0.098), abs=1e-3)
    assert Games(0, 1, 10, 0, 0).interval()[0] < 1.0
