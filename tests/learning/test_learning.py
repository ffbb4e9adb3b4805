"""Every algorithm solves CartPole with the flags that a newcomer has: none but the seed.

Each run is a process of its own, on one device and optimised, as users have it and the other tests do not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOLVED = 475.0


def train(algorithm: str, seed: int, folder: Path, *flags: str) -> dict[str, Any]:
    """Train from the command line; the run's summary."""
    command = [sys.executable, "-m", "tessera", "train", algorithm, "gymnax:CartPole-v1"]
    command += ["--seed", str(seed), "--run-dir", str(folder), *flags]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment.pop("XLA_FLAGS", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "summary.json").read_text())


def solves(algorithm: str, seed: int, folder: Path, *flags: str) -> None:
    summary = train(algorithm, seed, folder, *flags)
    assert summary["algorithm"] == algorithm
    assert summary["eval_episodes"] >= 100
    assert summary["eval_return_mean"] >= SOLVED, summary


def test_ppo_solves_cartpole(tmp_path):
    solves("ppo", 1, tmp_path / "run", "--target-return", str(SOLVED))  # as in `make train`


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_ppo_solves_cartpole_whatever_the_seed(seed, tmp_path):
    solves("ppo", seed, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("algorithm", ["a2c", "dqn"])
def test_a2c_and_dqn_solve_cartpole_whatever_the_seed(algorithm, seed, tmp_path):
    solves(algorithm, seed, tmp_path / "run")
