"""Games that are learned by self-play."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tessera import AlphaZero, train
from tessera.program.training_program import acting, published

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from every_line import walk


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_alphazero_never_loses_tic_tac_toe(seed):
    result = train(AlphaZero(), "pgx:tic_tac_toe", steps=150_000, seed=seed, quiet=True)
    view = acting(published(result.state))
    for first in (True, False):
        found = walk(result.algorithm, view, result.env, first)
        assert found["lost"] == 0, found
        assert found["won"] > 0
