"""Faults while replicas start, while the last state is saved, and while the disk is full."""

from __future__ import annotations

import errno
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from test_faults import MATCH, alive, children_of, notes, wait_until  # noqa: F401

import tessera
from tessera.engines.base import RestartsSpent
from tessera.engines.driver import supervisor
from tessera.engines.local import LocalEngine
from tessera.engines.serial import SerialEngine
from tessera.errors import RunFailed
from tessera.runs import signals
from tessera.runs.checkpoint import Checkpoints
from tessera.runs.metrics import MetricsWriter, read_metrics
from tessera.runs.run_evaluations import RunEvaluations
from tessera.runs.run_loop import Run
from tessera.runs.saved_run import load_run

HERE = str(Path(__file__).resolve().parent)
SMALL = tessera.A2C(unroll=8, widths=(8,))
CARTPOLE = "gymnax:CartPole-v1"
LEARNER = "store+grad+apply/0"


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the user was told."""
    lines: list[str] = []
    monkeypatch.setattr("tessera.runs.display.Quiet.note", lambda self, text: lines.append(text))
    return lines


# While replicas start.


@pytest.mark.usefixtures("notes")
def test_a_replica_that_never_returns_from_its_first_reset_is_started_again(said, monkeypatch):
    monkeypatch.setattr(supervisor, "SLOW_START_SECONDS", 2.0)
    result = tessera.train(
        MATCH, "py:broken_envs.Blocking", "single_learner_coarse", steps=2_000, seed=1, eval_episodes=2, quiet=True,
        start_timeout=12.0,
    )  # fmt: skip
    assert result.summary["restarts"] >= 1
    assert any("was not ready after" in line for line in said)
    assert any("has been starting for" in line and "--start-timeout" in line for line in said)


def test_replicas_that_are_never_ready_end_the_run_with_one_sentence():
    with pytest.raises(RestartsSpent, match=r"env\+act/\d died 3 times \(it was not ready after .*nothing done"):
        tessera.train(
            MATCH, "py:broken_envs.NeverReady", "single_learner_coarse:actors=1", steps=2_000, quiet=True,
            start_timeout=2.0,
        )  # fmt: skip


@pytest.mark.slow
def test_a_newcomer_that_is_stopped_as_it_starts_is_started_again(monkeypatch):
    """A newcomer that is stopped before it has imported anything counts as dead after a while."""
    stopped: list[int] = []
    advance, killed = LocalEngine.advance, []

    def advancing(engine: LocalEngine, count: int, ahead: int = 0) -> Any:
        if not killed and engine.done >= 3:
            killed.append(engine.processes()["env+act/0"])
            os.kill(killed[0], signal.SIGKILL)
            threading.Thread(target=stop_successor, args=(engine,), daemon=True).start()
        return advance(engine, count, ahead)

    def stop_successor(engine: LocalEngine) -> None:
        wait_until(lambda: engine.processes().get("env+act/0") not in (None, killed[0]), 30)
        stopped.append(engine.processes()["env+act/0"])
        os.kill(stopped[0], signal.SIGSTOP)

    monkeypatch.setattr(LocalEngine, "advance", advancing)
    result = tessera.train(
        SMALL, CARTPOLE, "single_learner_coarse:actors=2", steps=20_000, seed=1, envs=16, eval_episodes=2, quiet=True,
        start_timeout=12.0,
    )  # fmt: skip
    assert len(stopped) == 1
    assert result.summary["restarts"] == 2


def cli(run: Path, *more: str) -> list[str]:
    command = [sys.executable, "-m", "tessera", "train", "a2c", *more, "--run-dir", str(run), "--seed", "1"]
    return [*command, "--eval-episodes", "2", "--unroll", "8", "--widths", "8"]


def test_the_first_sigterm_ends_a_run_that_waits_for_replicas_to_start(tmp_path):
    command = cli(tmp_path / "run", "py:broken_envs.NeverReady", "--policy", "single_learner_coarse:actors=1")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])}
    driver = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_until(lambda: len(children_of(driver.pid)) >= 2, 60)
        pids = children_of(driver.pid)
        time.sleep(3.0)  # whether it has come to wait by now or not, it has to end
        driver.terminate()
        output, _ = driver.communicate(timeout=20)
    finally:
        driver.kill()
    assert driver.returncode == 143, output
    assert "Traceback" not in output
    wait_until(lambda: not any(alive(pid) for pid in pids), 10)
    assert not (tmp_path / "run").exists()


def test_a_signal_while_replicas_hang_ends_the_run_with_the_last_checkpoint(said, monkeypatch, tmp_path):
    """All processes stand still: after a while the run gives up what came after its last checkpoint."""
    monkeypatch.setattr(signals, "PATIENCE", 1.0)
    advance, stopped = LocalEngine.advance, []

    def advancing(engine: LocalEngine, count: int, ahead: int = 0) -> Any:
        if not stopped and (tmp_path / "run" / "checkpoints").is_dir() and engine.done >= 20:
            stopped.extend(engine.processes().values())
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            threading.Timer(0.2, signal.raise_signal, (signal.SIGTERM,)).start()
        return advance(engine, min(count, 5), ahead)

    monkeypatch.setattr(LocalEngine, "advance", advancing)
    options: dict[str, Any] = {"envs": 16, "seed": 1, "run_dir": tmp_path / "run", "eval_episodes": 2, "quiet": True}
    with pytest.raises(SystemExit) as left:
        tessera.train(SMALL, CARTPOLE, "single_learner_coarse:actors=1", steps=10**7, checkpoint_every=0.0, **options)
    assert left.value.code == 143
    latest = Checkpoints(tmp_path / "run" / "checkpoints", read_only=True).latest()
    assert said[-1] == (
        f"SIGTERM: replicas did not answer, so nothing newer is saved; update {latest} is saved in "
        f"{tmp_path / 'run'}; --resume goes on from there"
    )


# While the last state is saved.


def killing(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, title: str) -> list[int]:
    """Kill a replica just before a method is called for the first time."""
    killed: list[int] = []
    engines: list[LocalEngine] = []
    begin, original = Run._begin, getattr(owner, method)

    def begin_with(run: Run, found: int | None) -> Any:
        engines[:] = [run.engine]
        return begin(run, found)

    def kill_first(self: Any, *arguments: Any) -> Any:
        if not killed:
            killed.append(engines[0].processes()[title])
            os.kill(killed[0], signal.SIGKILL)
            wait_until(lambda: not alive(killed[0]), 5)
        return original(self, *arguments)

    monkeypatch.setattr(Run, "_begin", begin_with)
    monkeypatch.setattr(owner, method, kill_first)
    return killed


@pytest.mark.parametrize(
    ("owner", "method"), [pytest.param(Run, "_finish", marks=pytest.mark.slow), (RunEvaluations, "final")]
)
def test_a_learner_that_dies_at_the_very_end_costs_no_result(owner, method, monkeypatch, tmp_path):
    killed = killing(monkeypatch, owner, method, LEARNER)
    options: dict[str, Any] = {"envs": 16, "seed": 1, "run_dir": tmp_path / "run", "eval_episodes": 2, "quiet": True}
    result = tessera.train(
        SMALL, CARTPOLE, "single_learner_coarse:actors=1", steps=8 * 16 * 40, checkpoint_every=0.0, **options
    )
    assert killed
    assert result.summary["updates"] == 40
    assert result.summary["restarts"] == 1
    assert load_run(tmp_path / "run").update == 40
    assert [row["update"] for row in read_metrics(tmp_path / "run")][-1] == 40


@pytest.mark.slow
def test_a_signal_while_nodes_are_reclaimed_keeps_the_last_checkpoint(said, monkeypatch, tmp_path):
    advance, signalled = LocalEngine.advance, []
    killed = killing(monkeypatch, Run, "_stop_on_signal", LEARNER)

    def advancing(engine: LocalEngine, count: int, ahead: int = 0) -> Any:
        if not signalled and (tmp_path / "run" / "checkpoints").is_dir() and engine.done >= 20:
            signalled.append(True)  # once: a second signal would act as if nobody had caught it
            signal.raise_signal(signal.SIGTERM)
        return advance(engine, min(count, 5), ahead)

    monkeypatch.setattr(LocalEngine, "advance", advancing)
    options: dict[str, Any] = {"envs": 16, "seed": 1, "run_dir": tmp_path / "run", "eval_episodes": 2, "quiet": True}
    with pytest.raises(SystemExit) as left:
        tessera.train(SMALL, CARTPOLE, "single_learner_coarse:actors=1", steps=10**7, checkpoint_every=0.0, **options)
    assert killed
    assert left.value.code == 143
    latest = Checkpoints(tmp_path / "run" / "checkpoints", read_only=True).latest()
    assert f"update {latest} is saved in" in said[-1]
    monkeypatch.undo()
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    states = []
    for folder in ("run", "again"):  # what is there can be gone on from, to the same bits
        options["run_dir"] = tmp_path / folder
        result = tessera.train(
            SMALL, CARTPOLE, "single_learner_coarse:actors=1", steps=8 * 16 * (latest + 20), resume=True, **options
        )
        states.append(result.state)
    jax.tree.map(np.testing.assert_array_equal, *states)


# While the disk is full.


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


FUSED: dict[str, Any] = {"envs": 8, "seed": 1, "eval_episodes": 2, "quiet": True}


def saving_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a run save after every 50 updates, however long that takes on this machine."""
    advance, save = SerialEngine.advance, Run._try_to_save
    monkeypatch.setattr(SerialEngine, "advance", lambda engine, count, ahead=0: advance(engine, min(count, 50), ahead))
    monkeypatch.setattr(Run, "_try_to_save", lambda run: (save(run)[0], 0.0))


def test_while_the_disk_is_full_training_goes_on_and_the_checkpoint_is_tried_again(said, monkeypatch, tmp_path):
    import orbax.checkpoint as ocp

    saving_often(monkeypatch)
    save, write, tries = ocp.CheckpointManager.save, os.write, []

    def saving(manager: Any, step: int, **more: Any) -> Any:
        tries.append(step)
        if 2 <= len(tries) <= 4:  # there is room again afterwards
            (manager.directory / f"{step}.orbax-checkpoint-tmp").mkdir()
            full()
        return save(manager, step, **more)

    def writing(descriptor: int, data: bytes) -> int:
        if data.startswith(b'{"update"') and 2 <= len(tries) <= 4:
            write(descriptor, data[:5])
            full()
        return write(descriptor, data)

    monkeypatch.setattr(ocp.CheckpointManager, "save", saving)
    monkeypatch.setattr(os, "write", writing)
    result = tessera.train(
        SMALL, CARTPOLE, "fused:devices=1", steps=8 * 8 * 400, run_dir=tmp_path / "run", checkpoint_every=0.0, **FUSED
    )
    assert len(tries) > 5
    assert result.summary["updates"] == 400
    complaints = [line for line in said if "could not be written" in line]
    assert complaints[0].startswith(f"checkpoint {tries[1]} could not be written to")
    assert f"(No space left on device); the last good one is of update {tries[0]}: training goes on" in complaints[0]
    assert sum("metrics cannot be written" in line for line in said) == 1
    rows = [row["update"] for row in read_metrics(tmp_path / "run")]
    assert rows == sorted(set(rows)) == [row["update"] for row in result.metrics]
    assert not list((tmp_path / "run" / "checkpoints").glob("*tmp*"))
    assert load_run(tmp_path / "run").update == 400


def test_a_disk_that_stays_full_ends_the_run_with_one_sentence(monkeypatch, tmp_path):
    import orbax.checkpoint as ocp

    saving_often(monkeypatch)
    save, saved = ocp.CheckpointManager.save, []

    def saving(manager: Any, step: int, **more: Any) -> Any:
        saved.append(step)
        return save(manager, step, **more) if len(saved) == 1 else full()

    monkeypatch.setattr(ocp.CheckpointManager, "save", saving)
    with pytest.raises(RunFailed, match=r"could not be written .*No space left.* the last good one is of update \d+$"):
        tessera.train(
            SMALL, CARTPOLE, "fused:devices=1", steps=8 * 8 * 100, run_dir=tmp_path / "run", checkpoint_every=0.0,
            **FUSED,
        )  # fmt: skip
    assert load_run(tmp_path / "run").update == saved[0]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("only root may mount a file system")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.slow
def test_on_a_small_disk_the_last_good_checkpoint_resumes_to_the_same_bits(
    small_disk, monkeypatch, tmp_path, caplog, capfd
):
    algorithm = tessera.A2C(unroll=8, widths=(64, 64))
    options = {**FUSED, "checkpoint_every": 0.0}
    saving_often(monkeypatch)
    with pytest.raises(RunFailed) as caught:
        tessera.train(
            algorithm, CARTPOLE, "fused:devices=1", steps=8 * 8 * 600, keep=100, run_dir=small_disk / "run", **options
        )
    monkeypatch.undo()
    assert re.fullmatch(
        r"checkpoint 600 could not be written to .* \(No space left on device: [\d.]+ MB needed, [\d.]+ MB free\); "
        r"the last good one is of update \d+",
        str(caught.value),
    )
    gc.collect()  # what Orbax left behind would complain as it is collected
    assert not caplog.records
    assert "Traceback" not in capfd.readouterr().err
    good = load_run(small_disk / "run").update
    shutil.copytree(small_disk / "run", tmp_path / "run")
    result = tessera.train(algorithm, CARTPOLE, "fused:devices=1", resume=True, run_dir=tmp_path / "run", **options)
    whole = tessera.train(algorithm, CARTPOLE, "fused:devices=1", steps=8 * 8 * 600, **options)
    assert 0 < good < 600
    jax.tree.map(np.testing.assert_array_equal, result.state, whole.state)


def test_rows_for_which_there_is_no_room_are_written_later(monkeypatch, tmp_path):
    writer = MetricsWriter(tmp_path)
    writer.write({"update": 1})
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        writer.write({"update": 2})
        assert writer.failure is not None
        assert writer.failure.errno == errno.ENOSPC
    assert [row["update"] for row in read_metrics(tmp_path)] == [1]
    writer.write({"update": 3})
    assert writer.failure is None
    writer.close()
    assert [row["update"] for row in read_metrics(tmp_path)] == [1, 2, 3]


# Clocks and lengths of runs that go back or go on.


def test_time_is_counted_once_when_a_run_goes_back(monkeypatch, tmp_path):
    report, moments, begun = Run._report, [], []

    def reporting(run: Run, *arguments: Any) -> None:
        report(run, *arguments)
        begun[:] = [run.begun]
        moments.append((time.monotonic(), run.rows[-1]["seconds"]))

    advance, killed = LocalEngine.advance, []

    def advancing(engine: LocalEngine, count: int, ahead: int = 0) -> Any:
        if not killed and engine.done >= 60 and (tmp_path / "run" / "checkpoints").is_dir():
            killed.append(engine.processes()[LEARNER])
            os.kill(killed[0], signal.SIGKILL)
        return advance(engine, min(count, 5), ahead)

    monkeypatch.setattr(LocalEngine, "advance", advancing)
    monkeypatch.setattr(Run, "_report", reporting)
    tessera.train(
        SMALL, CARTPOLE, "single_learner_coarse:actors=1", steps=8 * 16 * 120, envs=16, seed=1,
        run_dir=tmp_path / "run", checkpoint_every=0.0, eval_episodes=2, quiet=True,
    )  # fmt: skip
    assert killed
    for now, seconds in moments:
        assert abs(seconds - (now - begun[0])) < 0.5


def test_a_run_that_goes_on_keeps_its_own_number_of_steps(tmp_path):
    options = {**FUSED, "run_dir": tmp_path / "run"}
    first = tessera.train(SMALL, CARTPOLE, "fused:devices=1", steps=8 * 8 * 10, **options)
    again = tessera.train(SMALL, CARTPOLE, "fused:devices=1", resume=True, **options)
    assert again.summary["updates"] == first.summary["updates"] == 10
    assert json.loads((tmp_path / "run" / "config.json").read_text())["steps"] == 8 * 8 * 10
    longer = tessera.train(SMALL, CARTPOLE, "fused:devices=1", steps=8 * 8 * 15, resume=True, **options)
    assert longer.summary["updates"] == 15
