"""Chaos on a cluster of three nodes: actors and whole nodes are killed, and every run completes and solves its task."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from test_faults import wait_until

import tessera
from tessera import cluster
from tessera.engines.fleet import Fleet

ACTOR_CRITIC = tessera.A2C(learning_rate=0.003)
VALUE_BASED = tessera.DQN(unroll=8, draws=4, batch=64, prioritised=True, n_step=3)
RUNS: dict[str, tuple[Any, int]] = {
    "single_learner_coarse:actors=2,mode=async": (ACTOR_CRITIC, 300_000),
    "central:workers=2,mode=async": (ACTOR_CRITIC, 300_000),
    "multi_learner:learners=2": (ACTOR_CRITIC, 300_000),
    "distributed_replay:stores=2,mode=async": (VALUE_BASED, 1_000_000),
}
FAST = ("single_learner_coarse:actors=2,mode=async", "a node")
CPUS, MEMORY = 8, 128 << 20


pytestmark = pytest.mark.usefixtures("nodes")


class Chaos:
    """Kills something whenever so many updates were made; notes how long the driver ever waited."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kill: Any, times: int, every: int) -> None:
        self.killed: list[str] = []
        self.longest = 0.0
        advance = Fleet.advance
        due = [every]

        def advancing(engine: Fleet, count: int, ahead: int = 0) -> Any:
            if len(self.killed) < times and engine.base + engine.done >= due[0]:
                found = kill(engine)
                if found:
                    self.killed.append(found)
                    due[0] += every
            begun = time.monotonic()
            try:
                return advance(engine, min(count, 40), ahead)
            finally:
                self.longest = max(self.longest, time.monotonic() - begun)

        monkeypatch.setattr(Fleet, "advance", advancing)


def kill_any(engine: Fleet) -> str:
    """Kill a replica at random."""
    living = engine.processes()
    title = random.Random(engine.done).choice(sorted(living))
    os.kill(living[title], signal.SIGKILL)
    return title


@pytest.mark.parametrize(
    ("policy", "what"),
    [
        pytest.param(policy, what, marks=() if (policy, what) == FAST else pytest.mark.slow)
        for policy in RUNS
        for what in ("actors", "a node")
    ],
)
def test_what_is_killed_is_made_good_and_the_task_is_solved(policy, what, nodes, monkeypatch, tmp_path):
    def kill_node(engine: Fleet) -> str:
        (raylet,) = cluster.processes_of(nodes["nodes"][-1], "raylet")
        os.kill(raylet, signal.SIGKILL)
        return "node"

    node = what == "a node"
    chaos = Chaos(monkeypatch, kill_node if node else kill_any, times=1 if node else 3, every=40)
    algorithm, steps = RUNS[policy]
    try:
        result = tessera.train(
            algorithm, "gymnax:CartPole-v1", policy, steps=steps, seed=1, envs=32, eval_episodes=20, engine="ray",
            run_dir=tmp_path / "run", checkpoint_every=1.0, target_return=475, quiet=True,
        )  # fmt: skip
    finally:
        if node:
            cluster.end_node(nodes["nodes"].pop())
            cluster.grow(nodes, CPUS, MEMORY)
    assert len(chaos.killed) == (1 if node else 3)
    assert result.summary["restarts"] >= 1
    assert result.summary["eval_return_mean"] >= 475
    assert chaos.longest < 60


def saves(run: Path) -> list[int]:
    """Updates of which there are checkpoints."""
    return [int(path.name) for path in (run / "checkpoints").glob("*") if path.name.isdigit()]


def test_a_killed_driver_leaves_no_actor_and_the_run_resumes_where_it_was(tmp_path):
    run = tmp_path / "run"
    command = [sys.executable, "-m", "tessera", "train", "a2c", "gymnax:CartPole-v1", "--engine", "ray", "--envs", "16"]
    command += ["--policy", "single_learner_coarse:actors=2", "--run-dir", str(run), "--checkpoint-every", "0.2"]
    command += ["--seed", "1", "--eval-episodes", "4", "--unroll", "8"]
    driver = subprocess.Popen([*command, "--steps", "90000000"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: driver.poll() is not None or saves(run), 90)
        pids = list(json.loads((run / "processes.json").read_text()).values())
    finally:
        driver.kill()
        driver.wait()
    assert len(pids) >= 3
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 30)
    saved = max(saves(run))
    more = [*command, "--steps", str((saved + 40) * 8 * 16), "--resume"]
    done = subprocess.run(more, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    updates = [row["update"] for row in rows]
    assert updates == sorted(set(updates))
    assert max(updates) == saved + 40
    assert [row["env_steps"] for row in rows] == [8 * 16 * update for update in updates]
