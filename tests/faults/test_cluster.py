"""Chaos on a cluster of three nodes: actors and whole nodes are killed, and every run ends and solves its task."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from test_faults import wait_until

import tessera
from tessera.engines.driver.process_engine import ProcessEngine
from tessera.engines.ray_backend import cluster

ACTOR_CRITIC = tessera.A2C(learning_rate=0.003)
CORRECTED = tessera.IMPALA()
"""For params that are some updates old: without corrections some runs unlearned the task again."""
VALUE_BASED = tessera.DQN(unroll=8, draws=8, batch=64, prioritised=True, n_step=3)
RUNS: dict[str, tuple[Any, int]] = {
    "single_learner_coarse:actors=2,mode=async": (CORRECTED, 600_000),
    "single_learner_coarse:actors=5,mode=async": (CORRECTED, 600_000),
    "central:workers=2,mode=async": (ACTOR_CRITIC, 300_000),
    "multi_learner:learners=2": (ACTOR_CRITIC, 300_000),
    "distributed_replay:stores=2,mode=async": (VALUE_BASED, 1_000_000),
}
CPUS, MEMORY = 8, 128 << 20


pytestmark = pytest.mark.usefixtures("nodes")


class Chaos:
    """Kills something every `every` updates, and records the longest wait of the driver."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kill: Any, times: int, every: int) -> None:
        self.killed: list[str] = []
        self.longest = 0.0
        advance = ProcessEngine.advance
        due = [every]

        def advancing(engine: ProcessEngine, count: int, ahead: int = 0) -> Any:
            if len(self.killed) < times and engine.base + engine.done >= due[0]:
                victim = kill(engine)
                if victim:
                    self.killed.append(victim)
                    due[0] += every
                    if len(self.killed) == times:  # Ray takes seconds to see a lost node, and a short run would be over
                        wait_for_restart(engine)
            begun = time.monotonic()
            try:
                return advance(engine, min(count, 40), ahead)
            finally:
                self.longest = max(self.longest, time.monotonic() - begun)

        monkeypatch.setattr(ProcessEngine, "advance", advancing)


def wait_for_restart(engine: ProcessEngine) -> None:
    """Wait until a death was handled; the driver itself has to see those after which a run goes back."""
    before, end = engine.restarts, time.monotonic() + 20
    while engine.restarts == before and time.monotonic() < end:
        time.sleep(0.05)


def kill_any(engine: ProcessEngine) -> str:
    """Kill a replica at random."""
    living = engine.processes()
    title = random.Random(engine.done).choice(sorted(living))
    os.kill(living[title], signal.SIGKILL)
    return title


def node_of(nodes: dict[str, Any], pid: int) -> dict[str, Any]:
    """The node on which a process runs."""
    return next(node for node in nodes["nodes"] if pid in cluster.processes_of(node, ""))


def kill_node_with(nodes: dict[str, Any], pids: list[int]) -> tuple[dict[str, Any], int]:
    """Kill a node with one of these processes, other than the head; the node, and the process."""
    by_pid = {pid: node_of(nodes, pid) for pid in pids}
    pid = next(pid for pid in pids if by_pid[pid] is not nodes["nodes"][0])
    (raylet,) = cluster.processes_of(by_pid[pid], "raylet")
    os.kill(raylet, signal.SIGKILL)
    return by_pid[pid], pid


@pytest.mark.parametrize(
    ("policy", "target"),
    [
        pytest.param(policy, target, marks=pytest.mark.slow)
        for policy in RUNS
        for target in ("actors", "neighbours", "a node")
    ],
)
def test_a_run_recovers_from_kills_and_solves_its_task(policy, target, nodes, monkeypatch, tmp_path):
    summary = train_with_kills(policy, target, nodes, monkeypatch, tmp_path, RUNS[policy][1])
    assert summary["eval_return_mean"] >= 475


def test_a_run_goes_on_when_a_node_is_killed(nodes, monkeypatch, tmp_path):
    policy = "single_learner_coarse:actors=2,mode=async"
    summary = train_with_kills(policy, "a node", nodes, monkeypatch, tmp_path, 60_000)
    assert summary["env_steps"] > 50_000


def train_with_kills(
    policy: str, target: str, nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, steps: int
) -> dict[str, Any]:
    """Train while replicas or a node are killed, see that the run went on; its summary."""
    lost: list[dict[str, Any]] = []

    def kill_node(engine: ProcessEngine) -> str:
        lost.append(kill_node_with(nodes, list(engine.processes().values()))[0])
        return "node"

    node = target == "a node"
    strategy = "STRICT_PACK" if target == "neighbours" else "SPREAD"
    monkeypatch.setattr("tessera.engines.ray_backend.launcher.STRATEGY", strategy)
    chaos = Chaos(monkeypatch, kill_node if node else kill_any, times=1 if node else 3, every=40)
    try:
        result = tessera.train(
            RUNS[policy][0], "gymnax:CartPole-v1", policy, steps=steps, seed=1, envs=32, eval_episodes=20, engine="ray",
            run_dir=tmp_path / "run", checkpoint_every=1.0, target_return=475, quiet=True,
        )  # fmt: skip
    finally:
        for gone in lost:
            nodes["nodes"].remove(gone)
            cluster.end_node(gone)
            cluster.grow(nodes, CPUS, MEMORY)
    assert len(chaos.killed) == (1 if node else 3)
    assert result.summary["restarts"] >= 1
    assert chaos.longest < 60
    return result.summary


def saves(run: Path) -> list[int]:
    """Updates with a checkpoint."""
    return [int(path.name) for path in (run / "checkpoints").glob("*") if path.name.isdigit()]


@pytest.mark.slow
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


@contextlib.contextmanager
def crowded() -> Iterator[None]:
    """Another job has all CPUs but one of every node."""
    from ray.util.placement_group import placement_group, remove_placement_group

    others = placement_group([{"CPU": CPUS - 1}] * 3, strategy="STRICT_SPREAD")
    assert others.wait(20)
    try:
        yield
    finally:
        remove_placement_group(others)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("policy", "remaining"),
    [
        ("single_learner_coarse:actors=2", "1 of 2 env+act"),
        ("multi_learner:learners=3", "2 of 3 env+act+store+grad+apply"),
    ],
)
def test_without_room_for_the_replicas_of_a_lost_node_the_run_goes_on_with_fewer(
    policy, remaining, nodes, monkeypatch, tmp_path, capfd
):
    lost: list[dict[str, Any]] = []

    def kill_node(engine: ProcessEngine) -> str:
        actors = [pid for title, pid in engine.processes().items() if title.startswith("env+act")]
        node, pid = kill_node_with(nodes, actors)
        lost.append(node)
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), 30)
        return "node"

    options: dict[str, Any] = {"steps": 60 * 8 * 16, "seed": 1, "envs": 16, "eval_episodes": 1, "precision": "f64"}
    algorithm = tessera.A2C(unroll=8, widths=(8,))
    expected = tessera.train(algorithm, "gymnax:CartPole-v1", "fused", quiet=True, **options)
    monkeypatch.setattr("tessera.engines.ray_backend.launcher.CAPACITY_SECONDS", 1.0)
    monkeypatch.setattr("tessera.engines.ray_backend.launcher.PLACEMENT_SECONDS", 3.0)
    monkeypatch.setattr("tessera.engines.ray.RELEASE_SECONDS", 3.0)
    chaos = Chaos(monkeypatch, kill_node, times=1, every=20)
    try:
        with crowded():
            result = tessera.train(
                algorithm, "gymnax:CartPole-v1", policy, engine="ray", run_dir=tmp_path / "run", checkpoint_every=0.0,
                **options,
            )  # fmt: skip
    finally:
        for node in lost:
            cluster.end_node(node)
            nodes["nodes"].remove(node)
            cluster.grow(nodes, CPUS, MEMORY)
    assert chaos.killed
    output = capfd.readouterr()
    assert f"goes on with {remaining}" in output.out + output.err
    replicas = int(remaining.split()[0])
    assert result.plan.fragments[0].replicas == replicas
    assert json.loads((tmp_path / "run" / "plan.json").read_text())["fragments"][0]["replicas"] == replicas
    updates = [json.loads(line)["update"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert updates == sorted(set(updates))
    assert updates[-1] == 60
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6), result.params, expected.params)
