"""Systems learn on real processes by their names, and V-trace is what lets IMPALA learn from old experience.

Each run is the command of a user, in a process of its own, optimised as users have it and the other tests do not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import staleness

pytestmark = pytest.mark.slow

FLAGS: dict[str, list[str]] = {
    "a2c": ["--policy", "single_learner_coarse"],
    "a3c": [],
    "a3c_hogwild": [],
    "apex_dpg": [],
    "apex_dqn": [],
    "async_nstep_q": [],
    "async_q": [],
    "async_sarsa": [],
    "gorila": [],
    "gorila_bundled": [],
    "impala": [],
    "impala_multi": [],
    "openai_five": [],
    "ppo_lstm": ["--policy", "single_learner_coarse"],
    "seed_rl": [],
}
"""What each system is given besides its name: processes, where it would choose none, and what it needs to learn."""

REPLICAS = {
    "a2c": 3,
    "a3c": 3,
    "a3c_hogwild": 2,
    "apex_dpg": 5,
    "apex_dqn": 5,
    "async_nstep_q": 3,
    "async_q": 3,
    "async_sarsa": 3,
    "gorila": 8,
    "gorila_bundled": 4,
    "impala": 3,
    "impala_multi": 4,
    "openai_five": 5,
    "ppo_lstm": 3,
    "seed_rl": 3,
}
"""Processes of a run."""

OTHERWISE = ("apex_dpg", "async_q", "async_sarsa", "async_nstep_q")
"""Systems with another task, or another goal."""

ACROBOT = ("a2c", "a3c", "a3c_hogwild", "impala", "ppo_lstm", "seed_rl")


def train(system: str, env: str, seed: int, folder: Path, *flags: str) -> dict[str, Any]:
    """Train from the command line; the run's summary, and as `processes` how many it had."""
    command = [sys.executable, "-m", "tessera", "train", system, env, *flags]
    command += ["--seed", str(seed), "--run-dir", str(folder), "--quiet"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment.pop("XLA_FLAGS", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    processes = json.loads((folder / "processes.json").read_text()) if (folder / "processes.json").exists() else {}
    return {**json.loads((folder / "summary.json").read_text()), "processes": len(processes)}


def solve(system: str, env: str, target: float, seed: int, folder: Path) -> dict[str, Any]:
    """Train on processes until the target, which must be reached; the run's summary."""
    summary = train(system, env, seed, folder, *FLAGS[system], "--target-return", str(target))
    assert summary["engine"] == "local"
    assert summary["eval_return_mean"] >= target, summary
    return summary


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("system", [name for name in FLAGS if name not in OTHERWISE])
def test_systems_solve_cartpole_on_processes(system, seed, tmp_path):
    summary = solve(system, "gymnax:CartPole-v1", 475, seed, tmp_path / "run")
    assert summary["processes"] == REPLICAS[system]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("policy", ["central:mode=async", "hogwild:carries=state"])
@pytest.mark.parametrize("system", ["async_q", "async_sarsa", "async_nstep_q"])
def test_asynchronous_q_learns_cartpole(system, policy, seed, tmp_path):
    summary = train(system, "gymnax:CartPole-v1", seed, tmp_path / "run", "--policy", policy)
    assert summary["eval_return_mean"] >= 195, summary


@pytest.mark.parametrize("seed", [1, 2])
def test_apex_dpg_solves_pendulum(seed, tmp_path):
    summary = solve("apex_dpg", "gymnax:Pendulum-v1", -200, seed, tmp_path / "run")
    assert summary["processes"] == REPLICAS["apex_dpg"]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("system", ACROBOT)
def test_systems_solve_acrobot_on_processes(system, seed, tmp_path):
    solve(system, "gymnax:Acrobot-v1", -100, seed, tmp_path / "run")


@pytest.mark.parametrize("seed", range(1, staleness.SEEDS + 1))
def test_v_trace_is_what_learns_from_old_experience(seed, tmp_path):
    flags = ["--policy", "fused", "--envs", staleness.ENVS, "--lag", staleness.LAG, "--steps", staleness.STEPS]
    flags += ["--widths", *staleness.OPTIONS["widths"]]
    task = ("impala", staleness.ENV, seed)
    corrected = train(*task, tmp_path / "corrected", *map(str, flags))
    taken_for_fresh = train(*task, tmp_path / "fresh", *map(str, flags), "--no-corrections")
    assert corrected["eval_return_mean"] >= staleness.TARGET, corrected
    assert taken_for_fresh["eval_return_mean"] < 50, taken_for_fresh
