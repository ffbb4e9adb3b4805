"""Callbacks see a run go by, stop it, and end it with a checkpoint if they raise; under every engine."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import tessera
from tessera.errors import RunFailed, TesseraError
from tessera.runs.checkpoint import Checkpoints
from tessera.runs.metrics import read_metrics

CARTPOLE = "gymnax:CartPole-v1"
SMALL = tessera.A2C(unroll=8, widths=(8,))
UPDATE = 8 * 8
"""Environment steps of one update of `SMALL`."""
OPTIONS: dict[str, Any] = {"envs": 8, "eval_episodes": 2, "quiet": True, "checkpoint_every": 1e6}
SERIAL: dict[str, Any] = {"policy": "fused:devices=1"}
LOCAL: dict[str, Any] = {"policy": "single_learner_coarse:actors=1", "engine": "local"}
ENGINES = [pytest.param(SERIAL, id="serial"), pytest.param(LOCAL, id="local")]


class Recorder(tessera.Callback):
    """Keeps every event."""

    def __init__(self) -> None:
        self.updates: list[tessera.UpdateEvent] = []
        self.evaluations: list[tessera.EvaluationEvent] = []
        self.checkpoints: list[tessera.CheckpointEvent] = []
        self.ends: list[tessera.EndEvent] = []

    def on_update(self, event: tessera.UpdateEvent) -> None:
        self.updates.append(event)

    def on_evaluation(self, event: tessera.EvaluationEvent) -> None:
        self.evaluations.append(event)

    def on_checkpoint(self, event: tessera.CheckpointEvent) -> None:
        assert event.path.is_dir()
        self.checkpoints.append(event)

    def on_end(self, event: tessera.EndEvent) -> None:
        self.ends.append(event)


class StopAt(tessera.Callback):
    """Stops a run, or one of its seeds, at an update."""

    def __init__(self, update: int, seed: int | None = None) -> None:
        self.update, self.seed = update, seed

    def on_update(self, event: tessera.UpdateEvent) -> None:
        if event.update >= self.update and self.seed in (None, event.seed):
            event.stop("seen enough")


class Raises(tessera.Callback):
    """Raises in one of its methods, once the run has come to an update."""

    def __init__(self, method: str, update: int = 0) -> None:
        def fail(event: Any) -> None:
            if event.update >= update:
                raise KeyError("no such board")

        setattr(self, method, fail)


@pytest.mark.parametrize("engine", ENGINES)
def test_callbacks_are_told_of_updates_evaluations_checkpoints_and_the_end(engine, tmp_path) -> None:
    seen, folder = Recorder(), tmp_path / "run"
    options = {**OPTIONS, **engine, "evaluate_every": 4, "seed": 3}
    result = tessera.train(SMALL, CARTPOLE, steps=9 * UPDATE, run_dir=folder, callbacks=[seen], **options)
    assert [dict(event.metrics) for event in seen.updates] == result.metrics[: len(seen.updates)]
    assert seen.updates[-1].metrics["eval/update"] == 8
    assert {event.seed for event in seen.updates} == {3}
    assert [event.update for event in seen.evaluations] == [4, 8, 9]
    assert [event.env_steps for event in seen.evaluations] == [4 * UPDATE, 8 * UPDATE, 9 * UPDATE]
    assert all(event.returns.shape == (2,) and event.return_mean > 0 for event in seen.evaluations)
    assert seen.evaluations[0].best
    newest = [event for event in seen.checkpoints if not event.best]
    assert [event.path for event in newest] == [folder / "checkpoints" / "9"]
    best = [event.update for event in seen.checkpoints if event.best]
    assert best == [event.update for event in seen.evaluations if event.best]
    (end,) = seen.ends
    assert end.summary == result.summary
    assert end.reason is None
    with pytest.raises(FrozenInstanceError):
        end.reason = "another"  # type: ignore[misc]
    with pytest.raises(TypeError):
        end.metrics["update"] = 0  # type: ignore[index]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_callback_stops_a_run_which_ends_like_one_that_has_reached_its_target(engine, tmp_path) -> None:
    seen, folder = Recorder(), tmp_path / "run"
    options = {**OPTIONS, **engine, "steps": 500 * UPDATE, "run_dir": folder}
    result = tessera.train(SMALL, CARTPOLE, callbacks=[StopAt(3), seen], **options)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary == result.summary
    assert (summary["stopped_early"], summary["stop_reason"]) == (True, "seen enough")
    assert 3 <= summary["updates"] < 500
    assert tessera.load(folder).update == summary["updates"] == read_metrics(folder)[-1]["update"]
    assert seen.ends[0].reason == "seen enough"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_callback_that_raises_leaves_a_checkpoint_from_which_the_run_goes_on(engine, tmp_path) -> None:
    folder, options = tmp_path / "run", {**OPTIONS, **engine, "steps": 6 * UPDATE}
    with pytest.raises(RunFailed, match=r"Raises.on_update raised KeyError at update \d+: 'no such board'") as failure:
        tessera.train(SMALL, CARTPOLE, run_dir=folder, callbacks=[Raises("on_update", 3)], **options)
    assert isinstance(failure.value.__cause__, KeyError)
    saved = tessera.load(folder).update
    assert f"; update {saved} is saved in {folder}, --resume goes on from there" in str(failure.value)
    assert 3 <= saved <= 6
    again = tessera.train(SMALL, CARTPOLE, run_dir=folder, resume=True, callbacks=[Recorder()], **options)
    whole = tessera.train(SMALL, CARTPOLE, **options)
    assert jax.tree.all(jax.tree.map(np.array_equal, again.params, whole.params))


@pytest.mark.parametrize("method", ["on_evaluation", "on_checkpoint", "on_end"])
def test_whichever_method_raises_is_named_and_a_checkpoint_is_there(method, tmp_path) -> None:
    options = {**OPTIONS, **SERIAL, "steps": 4 * UPDATE, "run_dir": tmp_path / "run"}
    with pytest.raises(RunFailed, match=f"Raises.{method} raised KeyError"):
        tessera.train(SMALL, CARTPOLE, callbacks=[Raises(method)], **options)
    assert tessera.load(tmp_path / "run").update == 4


def test_without_a_folder_the_error_names_no_checkpoint() -> None:
    with pytest.raises(RunFailed, match=r"at update 1: 'no such board'$"):
        tessera.train(SMALL, CARTPOLE, steps=4 * UPDATE, callbacks=[Raises("on_update")], **OPTIONS, **SERIAL)


def test_callbacks_change_nothing_in_training() -> None:
    plain, seen = (
        tessera.train(SMALL, CARTPOLE, steps=6 * UPDATE, callbacks=given, evaluate_every=every, **OPTIONS, **SERIAL)
        for given, every in (((), 0), ([Recorder()], 2))
    )
    assert jax.tree.all(jax.tree.map(np.array_equal, plain.state, seen.state))


def test_seeds_in_one_program_share_callbacks_and_stop_by_themselves(tmp_path) -> None:
    seen = Recorder()
    options = {**OPTIONS, "seeds": 2, "steps": 6 * UPDATE, "run_dir": tmp_path / "run"}
    results = tessera.train(SMALL, CARTPOLE, callbacks=[StopAt(2, seed=1), seen], **options)
    assert [run.summary["updates"] for run in results.runs.values()] == [6, 2]
    assert {event.seed: event.reason for event in seen.ends} == {0: None, 1: "seen enough"}
    assert [event.update for event in seen.updates if event.seed == 1] == [1, 2]


@pytest.mark.slow
def test_a_callback_that_raises_ends_its_seed_and_the_others_go_on(tmp_path) -> None:
    class Unlucky(tessera.Callback):
        def on_update(self, event: tessera.UpdateEvent) -> None:
            if event.seed == 1 and event.update == 2:
                raise KeyError("no such board")

    options = {**OPTIONS, "seeds": 2, "steps": 4 * UPDATE, "run_dir": tmp_path / "run"}
    with pytest.raises(RunFailed, match=r"1 of 2 seeds failed, first seed 1: Unlucky.on_update raised") as failure:
        tessera.train(SMALL, CARTPOLE, callbacks=[Unlucky()], **options)
    assert isinstance(failure.value.__cause__, RunFailed)
    assert isinstance(failure.value.__cause__.__cause__, KeyError)
    assert tessera.load(tmp_path / "run", seed=0).update == 4
    assert tessera.load(tmp_path / "run", seed=1).update == 2


def test_an_agent_trains_on_with_callbacks(tmp_path) -> None:
    folder, options = tmp_path / "run", {**OPTIONS, **SERIAL}
    tessera.train(SMALL, CARTPOLE, steps=2 * UPDATE, run_dir=folder, **options)
    agent, seen = tessera.load(folder), Recorder()
    result = agent.train(50 * UPDATE, callbacks=[StopAt(4), seen], policy=SERIAL["policy"], quiet=True, eval_episodes=2)
    assert seen.updates[0].update == 3
    assert result.summary["stop_reason"] == "seen enough"
    assert agent.update == result.summary["updates"] >= 4


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Recorder, r"callbacks\[1\] is the class Recorder: pass an instance of a class derived from Callback"),
        (print, r"callbacks\[1\] is a builtin_function_or_method"),
    ],
)
def test_what_is_no_callback_is_refused_before_anything_starts(given, words, tmp_path) -> None:
    with pytest.raises(TesseraError, match=words):
        tessera.train(SMALL, CARTPOLE, callbacks=[Recorder(), given], run_dir=tmp_path / "run", **OPTIONS)
    assert not list(tmp_path.iterdir())


def test_seeds_in_processes_of_their_own_have_no_callbacks(tmp_path) -> None:
    with pytest.raises(TesseraError, match="these seeds train in processes of their own: train one seed at a time"):
        tessera.train(SMALL, "CartPole-v1", seeds=2, callbacks=[Recorder()], run_dir=tmp_path / "run", **OPTIONS)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_example_of_the_docs_runs(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).resolve().parents[2] / "docs" / "callbacks.md"
    code = page.read_text().partition("```python\n")[2].partition("```")[0]
    exec(compile(code, str(page), "exec"), {})
    assert "(best)" in capsys.readouterr().out
    assert sorted(path.name for path in Path("runs").iterdir()) == ["x", "y"]


@pytest.mark.slow
@pytest.mark.usefixtures("nodes")
def test_callbacks_run_in_the_driver_of_a_cluster(tmp_path) -> None:
    folder, seen = tmp_path / "run", Recorder()
    options = {**OPTIONS, "policy": "single_learner_coarse:actors=2", "engine": "ray", "evaluate_every": 4}
    tessera.train(SMALL, CARTPOLE, steps=8 * UPDATE, run_dir=folder, callbacks=[seen], **options)
    assert [event.update for event in seen.evaluations] == [4, 8, 8]
    assert len(seen.ends) == 1
    with pytest.raises(RunFailed, match=r"Raises.on_update raised KeyError .* is saved in"):
        tessera.train(
            SMALL, CARTPOLE, steps=100 * UPDATE, run_dir=folder, resume=True, callbacks=[Raises("on_update", 10)],
            **options,
        )  # fmt: skip
    checkpoints = Checkpoints(Path(folder) / "checkpoints", read_only=True)
    assert (checkpoints.latest() or 0) >= 10
    checkpoints.close()
