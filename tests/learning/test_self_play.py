"""Games that are learned by self-play."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tessera import AlphaZero, train
from tessera.program.training_program import acting, published

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from every_line import walk
from exploitability import chances_of, exploitability

from tessera.runs.saved_run import load_run


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_alphazero_never_loses_tic_tac_toe(seed):
    result = train(AlphaZero(), "pgx:tic_tac_toe", steps=150_000, seed=seed, quiet=True)
    view = acting(published(result.state))
    for first in (True, False):
        found = walk(result.algorithm, view, result.env, first)
        assert found["lost"] == 0, found
        assert found["won"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [11, 12])
def test_the_best_answer_to_kuhn_poker_by_the_preset_wins_little(seed, tmp_path):
    command = [sys.executable, "-m", "tessera", "train", "ppo", "pgx:kuhn_poker", "--preset", "--seed", str(seed)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment.pop("XLA_FLAGS", None)  # optimised, as users have it and the other tests do not
    command += ["--eval-episodes", "10", "--run-dir", str(tmp_path / "run")]
    subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    run = load_run(tmp_path / "run")
    assert exploitability(run.env, chances_of(run.algorithm, run.view)) <= 0.02  # by PPO as it is: 0.3 and more
