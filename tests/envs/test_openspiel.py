"""Games of cards are OpenSpiel's, and an agent sees in them what OpenSpiel lets a player know."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyspiel
import pytest

from tessera.envs import make

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from exploitability import COUNTERPARTS, exploitability, uniform, walk


def any_policy(seen, legal):
    """Some probabilities for each observation, the same wherever it is seen."""
    drawn = [np.random.default_rng(observation.astype(np.uint8)).random(legal.shape[1]) for observation in seen]
    return np.stack(drawn) + 0.01


@pytest.mark.parametrize(
    ("game", "expected"), [("kuhn_poker", 0.4583333), ("leduc_holdem", 2.3736111)]
)  # those that OpenSpiel finds for its own uniform policy
def test_the_exploitability_of_moves_that_are_equally_likely_is_openspiels(game, expected):
    env = make(f"pgx:{game}")
    found = exploitability(env, uniform)
    assert found == pytest.approx(expected, abs=1e-6)
    theirs = COUNTERPARTS[env.name].load()
    assert found == pytest.approx(pyspiel.exploitability(theirs, pyspiel.UniformRandomPolicy(theirs)), abs=1e-9)


@pytest.mark.parametrize(("game", "known", "different"), [("kuhn_poker", 12, 12), ("leduc_holdem", 936, 288)])
def test_every_line_of_play_of_both_games_agrees(game, known, different):
    """`walk` compares players, moves, ends and payoffs; suits, of which Leduc has two, are no part of what is seen."""
    env = make(f"pgx:{game}")
    theirs = COUNTERPARTS[env.name].load()
    found = [walk(env, any_policy, first) for first in (0, 1)]
    for walked in found:
        assert (len(walked.policy), len({x.tobytes() for x in walked.observations.values()})) == (known, different)
        policy = pyspiel.TabularPolicy(walked.policy)
        value = pyspiel.expected_returns(theirs.new_initial_state(), policy, -1, True)[0]
        assert abs(value) > 0.01
        assert walked.payoff == pytest.approx(value, abs=1e-6)
    assert found[0].policy == found[1].policy  # whoever of ours begins
