"""A target return: who plays the episodes that decide, when, and what happens if they cannot be played."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from gymnasium.envs.classic_control import CartPoleEnv

import tessera
from tessera.engines.base import Interrupted
from tessera.engines.driver import pool
from tessera.engines.serial import SerialEngine
from tessera.evaluation import side_process
from tessera.evaluation.evaluator import Evaluator
from tessera.evaluation.side_evaluator import SideEvaluator
from tessera.runs.run_evaluations import RunEvaluations

UPDATES, ENVS, UNROLL = 400, 4, 8
A2C = tessera.A2C(unroll=UNROLL, widths=(8,))
OPTIONS: dict[str, Any] = {
    "envs": ENVS, "steps": UPDATES * ENVS * UNROLL, "engine": "serial", "eval_episodes": 4, "target_return": 5.0,
}  # fmt: skip
"""Every episode of a cart lasts longer than five steps: the first look finds the target reached."""


class Easy(CartPoleEnv):
    """Has no class of its own vector environments."""


class InDriverOnly(CartPoleEnv):
    """Raises in any process but the driver."""

    def step(self, action: Any) -> Any:
        if multiprocessing.parent_process() is not None:
            raise RuntimeError("the simulator is out of order")
        return super().step(action)


class Stuck(CartPoleEnv):
    """Never answers in any process but the driver."""

    def step(self, action: Any) -> Any:
        while multiprocessing.parent_process() is not None:
            time.sleep(0.1)
        return super().step(action)


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After each test no process of an evaluator is left."""
    pool.close_idle()
    monkeypatch.setattr(pool, "_keepers", 0)
    yield
    assert multiprocessing.active_children() == []


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Seeds of the greedy episodes that this process has played."""
    seeds: list[int] = []
    play = Evaluator.__call__

    def noted(self: Evaluator, view: Any, episodes: int, seed: int, *more: Any) -> Any:
        seeds.append(seed)
        return play(self, view, episodes, seed, *more)

    monkeypatch.setattr(Evaluator, "__call__", noted)
    return seeds


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training waits at its tenth update for an answer, or for the evaluator to give up: no speed decides a test."""
    after = RunEvaluations.after

    def patiently(self: RunEvaluations, update: int, *more: Any) -> Any:
        while (side := self._side) is not None and side._busy and update >= 10:
            time.sleep(0.01)
            side._watch()
        return (yield from after(self, update, *more))

    monkeypatch.setattr(RunEvaluations, "after", patiently)


def test_a_host_environments_target_is_checked_by_another_process_while_training_goes_on(played, waiting) -> None:
    result = tessera.train(A2C, Easy, quiet=True, **OPTIONS)
    assert result.summary["stopped_early"] is True
    assert result.summary["solved"] is True
    assert result.summary["seconds_to_target"] > 0
    assert played == [1_000_003]  # this process has played at the end only, and other episodes
    assert UPDATES // 100 < result.summary["updates"] < UPDATES


def test_a_device_environments_target_is_checked_in_place_at_fixed_updates(played) -> None:
    result = tessera.train(A2C, "gymnax:CartPole-v1", "fused:devices=1", quiet=True, **OPTIONS)
    assert result.summary["stopped_early"] is True
    assert result.summary["updates"] % (UPDATES // 100) == 0
    assert played == [2_000_003, 1_000_003]  # the episodes that decided to stop do not give the verdict
    assert result.metrics[-1]["eval/update"] == result.summary["updates"]
    assert result.summary["stop_reason"] == "target return reached"


def test_no_process_starts_while_training_is_far_from_the_target(monkeypatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(side_process, "start_process", never)
    result = tessera.train(A2C, Easy, quiet=True, **{**OPTIONS, "target_return": 500.0, "steps": 2000})
    assert result.summary["stopped_early"] is False


def test_if_the_process_always_dies_the_target_is_checked_in_place(played, waiting, monkeypatch, capsys) -> None:
    monkeypatch.setattr(side_process, "MAX_DEATHS", 1)
    result = tessera.train(A2C, InDriverOnly, **OPTIONS)
    assert result.summary["stopped_early"] is True
    assert played == [2_000_003, 1_000_003]
    assert "(the simulator is out of order) in step 1): not started again" in capsys.readouterr().out


def test_a_process_that_hangs_is_ended_and_does_not_hold_the_run_up(played, waiting, monkeypatch, capsys) -> None:
    monkeypatch.setattr(side_process, "MAX_DEATHS", 1)
    result = tessera.train(A2C, Stuck, start_timeout=0.5, **OPTIONS)
    assert result.summary["stopped_early"] is True
    assert played == [2_000_003, 1_000_003]
    assert "the evaluator died (no sign of life for 0.5 s): not started again" in capsys.readouterr().out


def test_a_check_that_is_under_way_at_the_last_update_is_given_up_and_the_end_judges(played) -> None:
    result = tessera.train(A2C, Stuck, quiet=True, **{**OPTIONS, "steps": 50 * ENVS * UNROLL})
    assert result.summary["updates"] == 50
    assert result.summary["stopped_early"] is False
    assert result.summary["seconds_to_target"] is None
    assert result.summary["solved"] is True
    assert played == [1_000_003]


def test_an_environment_that_cannot_be_sent_to_a_process_is_checked_in_place(played) -> None:
    result = tessera.train(A2C, lambda: CartPoleEnv(), quiet=True, **OPTIONS)
    assert result.summary["stopped_early"] is True
    assert played == [2_000_003, 1_000_003]


@pytest.mark.slow
def test_what_was_checked_before_a_run_went_back_does_not_stop_it(tmp_path, waiting, monkeypatch) -> None:
    """The first check is under way when the run goes back; its answer comes later, and is of other params."""
    advance, offer, withdraw = SerialEngine.advance, SideEvaluator.offer, SideEvaluator.withdraw
    events: list[str] = []

    def offered(self: SideEvaluator, *arguments: Any) -> None:
        offer(self, *arguments)
        events.append("offered")

    def interrupted(self: SerialEngine, *arguments: int) -> Any:
        if events == ["offered"]:
            raise Interrupted
        return advance(self, *arguments)

    def answered_late(self: SideEvaluator) -> None:
        withdraw(self)
        while self._busy:
            assert self.take() is None
        assert self.take() is None
        events.append("answered")

    monkeypatch.setattr(SideEvaluator, "offer", offered)
    monkeypatch.setattr(SideEvaluator, "withdraw", answered_late)
    monkeypatch.setattr(SerialEngine, "advance", interrupted)
    monkeypatch.setattr(SerialEngine, "rebuild", lambda self: events.append("rebuilt"))
    result = tessera.train(A2C, Easy, quiet=True, run_dir=tmp_path / "run", **OPTIONS)
    assert events[:3] == ["offered", "rebuilt", "answered"]
    assert result.summary["stopped_early"] is True  # by a later check
    assert events.count("offered") == 2


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A main module that is a script with a class `Mine`."""
    module = types.ModuleType("__main__")
    module.__file__ = __file__
    module.Mine = type("Mine", (), {"__module__": "__main__"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", module)
    return module


def test_a_process_imports_the_main_module_only_where_a_job_needs_it(main) -> None:
    assert not pool.needs_main(pool.pack_job((A2C, Easy)))
    assert pool.needs_main(pool.pack_job(main.Mine))
    before = (main.__file__, main.__spec__)
    with pool._importable_main(False), pytest.raises(tessera.TesseraError, match="put it into a file of its own"):
        pool.pack_job(main.Mine)
    with pool._importable_main(False):
        assert not hasattr(main, "__file__")
        assert main.__spec__ is None
    assert (main.__file__, main.__spec__) == before


def test_a_job_of_a_script_is_packed_while_another_process_is_being_spawned(main) -> None:
    hidden, packed = threading.Event(), threading.Event()

    def spawn() -> None:
        with pool._environment_lock, pool._importable_main(False):
            hidden.set()
            packed.wait(0.2)  # packing waits for the lock: it is not done before this is over

    def pack() -> bytes:
        try:
            return pool.pack_job(main.Mine)
        finally:
            packed.set()

    with ThreadPoolExecutor(1) as spawner:
        spawning = spawner.submit(spawn)
        hidden.wait()
        assert pool.needs_main(pack())
        spawning.result()


SCRIPT = """
import sys
print("begun", flush=True)
import tessera
result = tessera.train(
    tessera.A2C(unroll=8, widths=(8,)), "CartPole-v1", envs=4, steps=10**6, engine="serial", eval_episodes=4,
    target_return=5.0, quiet=True,
)
print("stopped", result.summary["stopped_early"], flush=True)
"""


@pytest.mark.slow
def test_a_script_without_a_guard_is_not_run_a_second_time_by_the_process(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    shown = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert shown.stdout.split() == ["begun", "stopped", "True"], shown.stderr


@pytest.mark.slow
def test_a_signal_during_a_check_saves_and_leaves_no_process(tmp_path: Path) -> None:
    command = ["train", "a2c", "py:test_target.Stuck", "--unroll", "8", "--widths", "8", "--envs", "4"]
    command += ["--steps", "1000000", "--target-return", "5", "--run-dir", str(tmp_path / "run")]
    run = subprocess.Popen(
        [sys.executable, "-m", "tessera", *command], cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True
    )
    children: list[str] = []
    try:
        while not children:
            assert run.poll() is None
            time.sleep(0.05)
            children = _children(run.pid)
        run.send_signal(signal.SIGTERM)
        out, _ = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 128 + signal.SIGTERM
    assert "SIGTERM: saved update" in out
    end = time.monotonic() + 60
    while [pid for pid in children if os.path.exists(f"/proc/{pid}")]:
        assert time.monotonic() < end
        time.sleep(0.01)


def _children(pid: int) -> list[str]:
    """Processes that any thread of a process has spawned."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that has ended meanwhile
            found += (task / "children").read_text().split()
    return [child for child in found if "--multiprocessing-fork" in Path(f"/proc/{child}/cmdline").read_text()]
