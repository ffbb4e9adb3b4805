"""Algorithms whose seeds, trained in one program with the flags that a newcomer has, all solve their task."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HIDDEN = ("gymnax:CartPole-v1?hide=1,3", 500_000, 475.0, 3)
"""Velocities have to be told from positions seen before."""
CHAIN = ("gymnax:MemoryChain-bsuite?memory_length=9", 100_000, 0.95, 3)
"""What the last action should be is shown at the beginning only."""
CARTPOLE, PENDULUM = ("gymnax:CartPole-v1", 500_000, 475.0, 5), ("gymnax:Pendulum-v1", 20_000, -180.0, 5)


@pytest.mark.parametrize(
    ("system", "task"),
    [
        ("c51", CARTPOLE),
        ("qr_dqn", CARTPOLE),
        ("rainbow", CARTPOLE),
        ("pqn", CARTPOLE),
        ("sac", PENDULUM),
        ("r2d2", HIDDEN),
        ("r2d2", CHAIN),
    ],
)
def test_every_seed_solves_the_task(system: str, task: tuple[str, int, float, int], tmp_path: Path) -> None:
    env, steps, solved, seeds = task
    command = [sys.executable, "-m", "tessera", "train", system, env, "--policy", "fused:devices=1"]
    command += ["--steps", str(steps), "--seed", "11", "--seeds", str(seeds), "--run-dir", str(tmp_path / "run")]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment.pop("XLA_FLAGS", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    summaries = [json.loads(path.read_text()) for path in (tmp_path / "run").glob("seed-*/summary.json")]
    assert len(summaries) == seeds
    assert [(s["seed"], s["eval_return_mean"]) for s in summaries if s["eval_return_mean"] < solved] == []
