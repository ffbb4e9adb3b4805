"""The side evaluator: its evaluations, that training never waits for it, and what happens when it dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from tessera import A2C, train
from tessera.engines.driver import pool
from tessera.envs import make
from tessera.errors import TesseraError
from tessera.evaluation import side_process
from tessera.evaluation.evaluator import Evaluator
from tessera.evaluation.side_evaluator import SideEvaluation, SideEvaluator
from tessera.program.initial import initial_state
from tessera.program.training_program import published

ALGORITHM = A2C(unroll=8, widths=(8,))
CARTPOLE = "gymnax:CartPole-v1"
EVERY = 5
TIMEOUT = 60.0
"""Seconds after which an evaluator counts as stuck."""


class Cart(CartPoleEnv):
    """A host environment, which another process evaluates."""


class Stuck(CartPoleEnv):
    """Can be stepped by the driver only: any other process hangs."""

    def step(self, action: Any) -> Any:
        if multiprocessing.parent_process() is not None:
            time.sleep(600)
        return super().step(action)


class Broken(CartPoleEnv):
    """Can be stepped by the driver only: in any other process it raises."""

    def step(self, action: Any) -> Any:
        if multiprocessing.parent_process() is not None:
            raise RuntimeError("the simulator is out of order")
        return super().step(action)


def wait_for(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def waited(take: Callable[[], SideEvaluation | None]) -> SideEvaluation:
    """The evaluation that comes next."""
    found: list[SideEvaluation | None] = []
    wait_for(lambda: found.append(take()) or found[-1])
    assert found[-1] is not None
    return found[-1]


def runs(pid: int | None) -> bool:
    """Whether there is such a process, even as a zombie."""
    return Path(f"/proc/{pid}").exists()


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After each test no process and no memory of an evaluator is left."""
    pool.close_idle()
    monkeypatch.setattr(pool, "_keepers", 0)
    yield
    assert multiprocessing.active_children() == []
    files = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert not [name for name in files if "tessera-block" in name]


class Recorded(SideEvaluator):
    """Records which updates it was offered, and by which process they were taken."""

    made: list[Recorded]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.offered: list[int] = []
        self.pids: list[int | None] = []
        type(self).made = [self]

    def offer(self, update: int, view: Any) -> None:
        super().offer(update, view)
        self.offered.append(update)
        if self.pid not in self.pids:
            self.pids.append(self.pid)


class Killed(Recorded):
    """Is killed once it has params; training waits until its successor has evaluated some."""

    def take(self) -> SideEvaluation | None:
        if len(self.pids) == 1 and self._worker is not None and self._worker.process.is_alive():
            os.kill(self._worker.process.pid, signal.SIGKILL)
            self._worker.process.join()
        return waited(super().take) if len(self.pids) == 2 and self._busy else super().take()


def run_with(
    evaluator: type[Recorded], env: Any, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[Any, Recorded]:
    """Train with the given kind of evaluator: the result, and the evaluator."""
    monkeypatch.setattr("tessera.runs.run_evaluations.SideEvaluator", evaluator)
    updates, envs = 100, 8
    steps = updates * envs * ALGORITHM.unroll
    result = train(ALGORITHM, env, steps=steps, envs=envs, evaluate_every=EVERY, eval_episodes=8, **options)
    assert len(result.metrics) > 20
    return result, evaluator.made[0]


def test_an_evaluator_finds_what_the_driver_would_find() -> None:
    env = make(CARTPOLE)
    algorithm = ALGORITHM.bind(env.spec)
    view = published(initial_state(algorithm, jax.random.key(1), 1))
    side = SideEvaluator(algorithm, env, 8, 0)
    try:
        assert side.take() is None
        assert side.ready()
        side.offer(7, view)
        assert not side.ready()
        found = waited(side.take)
        assert side.take() is None
        assert side.ready()
    finally:
        side.close()
    expected = Evaluator(algorithm, env)(view, 8, 2_000_003)
    assert found.update == 7
    np.testing.assert_allclose(found.evaluation.returns, expected.returns)
    np.testing.assert_array_equal(found.evaluation.lengths, expected.lengths)
    jax.tree.map(np.testing.assert_array_equal, found.view, jax.device_get(view))
    side.close()  # once more does no harm


def test_rows_get_evaluations_and_a_killed_evaluator_is_replaced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result, side = run_with(Killed, Cart, monkeypatch)
    evaluated = [row for row in result.metrics if "eval/return_mean" in row]
    assert "eval/return_mean" not in result.metrics[0]
    assert evaluated[-1] is result.metrics[-1]
    assert all(row["eval/update"] in side.offered and row["eval/update"] <= row["update"] for row in evaluated)
    assert all(1 <= row["eval/return_mean"] <= 500 for row in evaluated)
    assert evaluated[0]["eval/update"] == side.offered[1]  # the first were lost
    assert all(update % EVERY == 0 for update in side.offered)
    assert "the evaluator died (exit code -9): started again" in capsys.readouterr().out
    assert len(side.pids) == 2
    assert not any(runs(pid) for pid in side.pids)
    assert result.summary["updates"] == 100


def test_training_does_not_wait_for_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    result, side = run_with(Recorded, Stuck, monkeypatch, quiet=True)
    assert result.summary["updates"] == 100
    assert side.offered == [EVERY]  # it was busy whenever it could have had more
    assert not any("eval/return_mean" in row for row in result.metrics)
    assert not runs(side.pids[0])


def test_an_evaluator_that_dies_too_often_is_not_started_again_and_its_error_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(side_process, "MAX_DEATHS", 1)
    env = make(Broken)
    algorithm = ALGORITHM.bind(env.spec)
    notes: list[str] = []
    side = SideEvaluator(algorithm, env, 8, 0, notes.append)
    try:
        assert side.ready()
        pid = side.pid
        side.offer(1, published(initial_state(algorithm, jax.random.key(1), 1)))
        wait_for(lambda: not side.ready() and notes)
        assert not side.ready()
        assert side.pid is None
    finally:
        side.close()
    assert len(notes) == 1
    assert "the simulator is out of order" in notes[0]
    assert notes[0].endswith("not started again")
    assert not runs(pid)


def test_an_environment_that_cannot_be_sent_is_refused_before_training() -> None:
    env = make(lambda: CartPoleEnv())
    with pytest.raises(TesseraError, match="cannot be sent to another process"):
        SideEvaluator(ALGORITHM.bind(env.spec), env, 8, 0)
