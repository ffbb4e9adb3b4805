"""Games won, drawn and lost, with intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tessera.evaluation.evaluator import Evaluation
from tessera.evaluation.intervals import share_interval
from tessera.evaluation.outcomes import Outcomes, outcome_figures


def test_games_are_counted_by_their_returns():
    played = Evaluation(np.asarray([1.0, 2.0, 0.0, -1.0, 1.0]), np.ones(5), opponent="greedy")
    assert played.outcomes == Outcomes(3, 1, 1)
    assert "against greedy: 3 won, 1 drawn, 1 lost (95 %: won 23.1% to 88.2%" in played.outcomes.in_words("greedy")
    assert Evaluation(played.returns, played.lengths).outcomes is None


def test_a_share_has_wilsons_interval():
    """Figures of Newcombe (1998), table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29."""
    known = {(81, 263): (0.2553, 0.3662), (15, 148): (0.0624, 0.1605), (0, 20): (0, 0.1611), (1, 29): (0.0061, 0.1718)}
    for seen, bounds in known.items():
        assert share_interval(*seen) == pytest.approx(bounds, abs=1e-4)
    assert all(map(math.isnan, share_interval(0, 0)))


def test_figures_of_what_is_no_game_are_not_known():
    assert set(outcome_figures(None, "", "eval_").values()) == {None}
    figures = outcome_figures(Outcomes(2, 0, 0), "random", "eval_")
    assert (figures["eval_won"], figures["eval_opponent"]) == (2, "random")
    assert figures["eval_won_interval"][1] == 1.0
