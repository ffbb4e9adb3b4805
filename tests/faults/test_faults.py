"""Real processes are killed, hang and crash: runs go on, resume, or end with one sentence; nothing is left behind."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tessera
from tessera.engines.base import RestartsSpent
from tessera.engines.driver import supervisor
from tessera.engines.local import LocalEngine
from tessera.errors import RunFailed
from tessera.runs import run_options

MATCH = tessera.A2C(unroll=8, widths=(8,), learning_rate=0.02)
CARTPOLE = tessera.A2C(learning_rate=0.003)


@pytest.fixture
def notes() -> Iterator[None]:
    """A folder in which environments note that they have broken."""
    from broken_envs import notes_of

    folder = notes_of(os.getpid())
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    yield
    shutil.rmtree(folder)


class Killer:
    """Kills replicas whose title begins with `title`, at random, each once it has made some updates."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, title: str, times: int, seed: int = 1) -> None:
        self.killed: list[str] = []
        self.noticed: list[float] = []
        self._random = random.Random(seed)
        advance = LocalEngine.advance
        killer = self
        left = [times]

        def advancing(engine: LocalEngine, count: int, ahead: int = 0) -> Any:
            living = {t: p for t, p in engine.processes().items() if t.startswith(title)}
            if left[0] and engine.done >= 3 and living:
                left[0] -= 1
                # while it works, not between two calls
                delay = killer._random.uniform(0.0, 0.2)
                threading.Timer(delay, killer._kill, (killer._random.choice(sorted(living)), engine)).start()
            return advance(engine, count, ahead)

        monkeypatch.setattr(LocalEngine, "advance", advancing)

    def _kill(self, title: str, engine: LocalEngine) -> None:
        pid = engine.processes().get(title)
        if pid is None:
            return
        self.killed.append(title)
        os.kill(pid, signal.SIGKILL)
        begun = time.monotonic()
        while engine.processes().get(title) == pid and time.monotonic() < begun + 10:
            time.sleep(0.01)
        self.noticed.append(time.monotonic() - begun)


def train_with_kills(monkeypatch: pytest.MonkeyPatch, policy: str, title: str, steps: int) -> float:
    """Train while two replicas are killed, see that both were noticed and replaced; the greedy return."""
    killer = Killer(monkeypatch, title, times=2)
    result = tessera.train(
        CARTPOLE, "gymnax:CartPole-v1", policy, steps=steps, seed=1, envs=32, eval_episodes=20
    )  # not quietly: if it fails, what was noted tells why
    assert len(killer.killed) == 2
    assert max(killer.noticed) < 2.0
    assert result.summary["restarts"] == 2
    assert result.metrics[-1]["restarts"] == 2
    return result.summary["eval_return_mean"]


KILLED = [
    ("single_learner_coarse:mode=async", "env+act"),
    ("single_learner_coarse:actors=3,mode=async,take=4", "env+act"),
    ("single_learner_coarse", "env+act"),
    ("single_learner_fine:wait=0.001", "env"),
    ("split_inference:wait=0", "act"),
    ("central:shards=2,mode=async", "apply"),
    ("central:shards=2", "apply/1"),
]


@pytest.mark.parametrize(
    ("policy", "title"),
    [
        pytest.param(*pair, marks=pytest.mark.slow if "async" in pair[0] else ())
        for pair in KILLED[1:]
        if pair[1] != "act"
    ],
)
def test_a_replica_that_is_killed_is_noticed_and_replaced(policy, title, monkeypatch):
    train_with_kills(monkeypatch, policy, title, steps=60_000)


@pytest.mark.parametrize(
    ("policy", "title"), [KILLED[0], *(pytest.param(*pair, marks=pytest.mark.slow) for pair in KILLED[1:])]
)
def test_a_run_with_killed_replicas_solves_its_task(policy, title, monkeypatch):
    assert train_with_kills(monkeypatch, policy, title, steps=300_000) > 400


def test_a_learner_that_is_killed_goes_on_from_the_last_checkpoint(monkeypatch, tmp_path):
    killer = Killer(monkeypatch, "store+grad+apply", times=1)
    result = tessera.train(
        CARTPOLE,
        "gymnax:CartPole-v1",
        "single_learner_coarse",
        steps=200_000,
        seed=1,
        run_dir=tmp_path / "run",
        checkpoint_every=0.2,
        eval_episodes=20,
        quiet=True,
    )
    assert killer.killed == ["store+grad+apply/0"]
    assert result.summary["restarts"] == 1
    updates = [row["update"] for row in result.metrics]
    assert updates == sorted(set(updates))
    rows = [json.loads(line)["update"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows == sorted(set(rows))
    assert rows[-1] == result.summary["updates"]
    assert result.summary["eval_return_mean"] > 300


@pytest.mark.parametrize(("env", "options"), [("Crashing", {}), ("Hanging", {"timeout": 2.0})])
def test_an_environment_that_breaks_is_started_again_and_named_with_its_traceback_once(env, options, notes, capsys):
    begun = time.monotonic()
    result = tessera.train(
        MATCH, f"py:broken_envs.{env}", "single_learner_coarse", steps=12_000, seed=1, eval_episodes=8, **options
    )
    said = capsys.readouterr().out
    assert result.summary["restarts"] == 1
    assert result.summary["eval_return_mean"] == 10.0
    if env == "Crashing":
        assert said.count("Traceback") == 1
        assert "training_program.py" not in said, "only the environment's own code is shown"
        assert said.count("RuntimeError: the simulator is out of order") == 1
        assert (
            "environment py:broken_envs.Crashing raised RuntimeError (the simulator is out of order) in step " in said
        )
    else:
        assert "no progress for 2 s" in said
        assert time.monotonic() - begun < 60


def test_when_restarts_are_spent_the_run_ends_with_one_sentence(monkeypatch, tmp_path):
    with pytest.raises(RunFailed, match=r"replica env\+act/\d died .* raised RuntimeError \(.*\) in step ") as caught:
        tessera.train(MATCH, "py:broken_envs.Hopeless", "single_learner_coarse", steps=10_000, quiet=True)
    assert isinstance(caught.value, RestartsSpent)
    assert caught.value.exit_code == 1
    assert "\n" not in str(caught.value)


def test_a_budget_that_is_spent_leaves_a_checkpoint_to_resume_from(monkeypatch, tmp_path):
    Killer(monkeypatch, "env+act", times=1)
    options = {"seed": 1, "run_dir": tmp_path / "run", "checkpoint_every": 0.1, "eval_episodes": 8, "quiet": True}
    with pytest.raises(RunFailed, match=r"died 1 time .*saved in .*--resume goes on"):
        tessera.train(CARTPOLE, "gymnax:CartPole-v1", "single_learner_coarse", steps=120_000, restarts=0, **options)
    monkeypatch.undo()
    result = tessera.train(
        CARTPOLE, "gymnax:CartPole-v1", "single_learner_coarse", steps=120_000, resume=True, **options
    )
    assert result.summary["env_steps"] >= 117_000


def test_a_killed_driver_leaves_no_process_and_no_memory_and_the_run_resumes(tmp_path):
    run, before = tmp_path / "run", set(os.listdir("/dev/shm"))
    command = [sys.executable, "-m", "tessera", "train", "a2c", "gymnax:CartPole-v1"]
    command += ["--policy", "single_learner_coarse"]
    command += ["--run-dir", str(run), "--checkpoint-every", "0.2", "--seed", "1", "--eval-episodes", "8"]
    driver = subprocess.Popen([*command, "--steps", "90000000"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: any((run / "checkpoints").glob("[0-9]*")), 90)
        pids = children_of(driver.pid)
        assert len(pids) >= 3
    finally:
        driver.kill()
        driver.wait()
    wait_until(lambda: not any(alive(pid) for pid in pids), 5)
    assert set(os.listdir("/dev/shm")) <= before
    done = subprocess.run(
        [*command, "--steps", "100000", "--resume"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "resuming" in done.stdout


def children_of(parent: int) -> list[int]:
    """Processes that a process has started, and those that they have."""
    found = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in found.splitlines()]
    direct = [pid for pid, ppid in pairs if ppid == parent]
    return direct + [pid for child in direct for pid in children_of(child)]


def alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Any, seconds: float) -> None:
    """Wait, and fail if it takes too long."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


def stop_one(monkeypatch: pytest.MonkeyPatch, title: str) -> list[str]:
    """Stop a replica once, as SIGSTOP does; the list of titles of those that were."""
    stopped: list[str] = []

    def stop(self: Killer, title: str, engine: LocalEngine) -> None:
        stopped.append(title)
        os.kill(engine.processes()[title], signal.SIGSTOP)

    monkeypatch.setattr(Killer, "_kill", stop)
    Killer(monkeypatch, title, times=1)
    return stopped


def test_a_replica_that_is_stopped_and_makes_no_progress_counts_as_dead(monkeypatch):
    stopped = stop_one(monkeypatch, "env+act")
    options: dict[str, Any] = {"envs": 32, "eval_episodes": 4, "quiet": True, "timeout": 2.0}
    result = tessera.train(CARTPOLE, "gymnax:CartPole-v1", "single_learner_coarse", steps=40_000, seed=1, **options)
    assert len(stopped) == 1
    assert result.summary["restarts"] == 1


@pytest.mark.slow
def test_a_checkpoint_that_waits_for_a_stopped_actor_names_it_and_the_next_ones_come_in_time(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(supervisor, "SLOW_ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(run_options, "SAVING_SHARE", 0.1)  # a checkpoint falls due long before the timeout
    stopped = stop_one(monkeypatch, "env+act")
    tessera.train(
        CARTPOLE, "gymnax:CartPole-v1", "single_learner_coarse:mode=async", steps=4_000_000, seed=1, envs=32,
        eval_episodes=4, timeout=8.0, checkpoint_every=0.5, run_dir=tmp_path / "run",
    )  # fmt: skip
    assert f"has waited 1 s for an answer of {stopped[0]}" in capsys.readouterr().out
    marks = [json.loads(line) for line in (tmp_path / "run" / "live" / "marks.jsonl").read_text().splitlines()]
    (death,) = (mark["time"] for mark in marks if mark["kind"] == "death")
    end = marks[-1]["time"]
    after = [mark["time"] for mark in marks if mark["kind"] == "checkpoint" and death < mark["time"] < end - 1]
    assert len(after) >= 2
