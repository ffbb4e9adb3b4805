"""Self-play resumed: games under way, positions that wait for their outcome, and the replay are in a checkpoint."""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_checkpoint import after_calls, assert_same_bytes, crash, finish, slots, start, wait_for_update

import tessera

GAME, ENVS, UNROLL, UPDATES = "pgx:tic_tac_toe", 8, 4, 12
SETTINGS: dict[str, Any] = {
    "unroll": UNROLL, "simulations": 4, "draws": 2, "batch": 16, "capacity": 800, "warmup": 1, "channels": 4,
    "blocks": 1,
}  # fmt: skip
WARMUP = 4
"""Unrolls of the longest game, and one more."""


def steps(updates: int) -> int:
    return ENVS * UNROLL * (updates + WARMUP)


def go(folder: Path, policy: str, resume: bool = False) -> tessera.Result:
    options: dict[str, Any] = {"envs": ENVS, "checkpoint_every": 0.0, "eval_episodes": 1, "quiet": True}
    algorithm = tessera.AlphaZero(**SETTINGS)
    return tessera.train(algorithm, GAME, policy, steps=steps(UPDATES), run_dir=folder, resume=resume, **options)


@pytest.mark.parametrize(
    "policy", ["fused:devices=1", pytest.param("single_learner_coarse:actors=2", marks=pytest.mark.slow)]
)
def test_a_run_that_ended_anywhere_goes_on_as_if_it_had_not(policy, tmp_path, monkeypatch):
    whole = go(tmp_path / "whole", policy)
    assert whole.algorithm.schedule.warmup == WARMUP
    for calls in (2, 5):
        with monkeypatch.context() as patch:
            after_calls(patch, calls, crash)
            with pytest.raises(RuntimeError, match="crash"):
                go(tmp_path / "cut", policy, resume=calls > 2)
    result = go(tmp_path / "cut", policy, resume=True)
    assert result.summary["updates"] == whole.summary["updates"] == UPDATES
    saved = slots(tmp_path / "cut")
    assert_same_bytes(slots(tmp_path / "whole"), saved)
    waits = next(x for name, x in saved.items() if name.startswith("memory") and name.endswith("size"))
    assert np.sum(waits) > 0  # games are under way


def command(folder: Path, policy: str, updates: int) -> list[str]:
    flags = [f"--{name}={value}" for name, value in SETTINGS.items()]
    flags += [f"--steps={steps(updates)}", f"--envs={ENVS}", f"--policy={policy}", f"--run-dir={folder}"]
    more = ["--eval-episodes=1", "--checkpoint-every=0", *flags]
    return [sys.executable, "-m", "tessera", "train", "alphazero", GAME, *more]


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "updates", "kills"), [("fused", 150, 2), ("single_learner_coarse:actors=2", 60, 1)])
def test_after_sigkill_at_a_random_moment_resume_gives_the_same_bits(policy, updates, kills, tmp_path):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    code, output = finish(start(command(whole, policy, updates)), 300)
    assert code == 0, output
    for k, moment in enumerate(sorted(random.randrange(2, int(updates * 0.9)) for _ in range(kills))):
        process = start([*command(killed, policy, updates), *(["--resume"] if k else [])])
        wait_for_update(process, killed, moment)
        os.kill(process.pid, signal.SIGKILL)
        assert finish(process)[0] == -signal.SIGKILL
    code, output = finish(start([*command(killed, policy, updates), "--resume"]), 300)
    assert code == 0, output
    assert f"resuming {killed} from update" in output
    assert_same_bytes(slots(whole), slots(killed))
