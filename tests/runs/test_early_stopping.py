"""Early stopping: what counts as an improvement, and that a resumed run stops where a whole one would have."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

import tessera
from tessera.cli.main import main
from tessera.evaluation.evaluator import Evaluation, Evaluator
from tessera.runs.early_stopping import EarlyStopping

CARTPOLE = "gymnax:CartPole-v1"
SMALL = tessera.A2C(unroll=8, widths=(8,))
UPDATE = 8 * 8
OPTIONS: dict[str, Any] = {"envs": 8, "eval_episodes": 2, "quiet": True, "policy": "fused:devices=1"}
RETURNS = {2: 10.0, 4: 20.0, 6: 20.5, 8: 19.0, 10: 30.0}
"""Mean return that the evaluation of each update is made to have."""


@pytest.fixture(autouse=True)
def _returns_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations find `RETURNS`, by the number of updates that the params have received."""

    def play(self: Evaluator, view: Any, episodes: int, seed: int, *_: Any) -> Evaluation:
        update = int(view.clock.applies) // self.algorithm.schedule.applies
        return Evaluation(np.full(episodes, RETURNS.get(update, 0.0)), np.ones(episodes))

    monkeypatch.setattr(Evaluator, "__call__", play)


def judged(returns: list[float], **options: Any) -> list[bool]:
    stopping = EarlyStopping(**options)
    return [stopping.judge(mean) is not None for mean in returns]


def test_a_run_stops_after_so_many_evaluations_without_improvement() -> None:
    assert judged([1, 2, 2, 1], patience=2) == [False, False, False, True]
    assert judged([1, 2, 2, 3, 3], patience=2) == [False] * 5
    assert judged([1.0, math.nan, math.nan], patience=2) == [False, False, True]
    assert judged([5, 4, 3, 2], patience=None) == [False] * 4


def test_an_improvement_may_have_to_be_large() -> None:
    assert judged([1.0, 1.5, 1.9], patience=2, min_improvement=1.0) == [False, False, True]
    assert judged([1.0, 1.5, 2.0], patience=2, min_improvement=1.0) == [False] * 3
    assert judged([-5.0, -5.0], patience=1, min_improvement=1.0) == [False, True]


def test_counts_go_on_after_a_round_trip_through_json() -> None:
    stopping = EarlyStopping(2)
    for restored in ({"best": None, "since_best": 0}, {"best": 3.0, "since_best": 1}):
        stopping.restore(json.loads(json.dumps(restored)))
        assert stopping.to_json() == restored
    assert stopping.judge(3.0) == "no improvement in 2 evaluations"
    stopping.restore(None)
    assert stopping.to_json() == {"best": None, "since_best": 0}


def test_patience_ends_a_run_and_the_summary_says_why(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    flags = "--unroll 8 --widths 8 --envs 8 --policy fused:devices=1 --eval-episodes 2 --run-dir run"
    flags += f" --steps {50 * UPDATE} --evaluate-every 2 --patience 2 --min-improvement 1"
    main(["train", "a2c", CARTPOLE, *flags.split()])
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["updates"], summary["stop_reason"]) == (8, "no improvement in 2 evaluations")
    shown = capsys.readouterr().out
    assert "stopped early, at update 8: no improvement in 2 evaluations" in shown


def test_a_resumed_run_stops_where_a_whole_one_would_have(tmp_path) -> None:
    options = {**OPTIONS, "evaluate_every": 2, "patience": 2, "min_improvement": 1.0, "run_dir": tmp_path / "run"}
    first = tessera.train(SMALL, CARTPOLE, steps=7 * UPDATE, **options)
    assert first.summary["stopped_early"] is False
    again = tessera.train(SMALL, CARTPOLE, steps=50 * UPDATE, resume=True, **options)
    assert again.summary["updates"] == 8


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--patience 2", "--patience counts evaluations: add --evaluate-every"),
        ("--patience 0 --evaluate-every 2", "--patience 0: at least one is needed"),
        ("--patience 1 --evaluate-every 2 --min-improvement -1", "--min-improvement -1: it cannot be below zero"),
    ],
)
def test_what_makes_no_sense_is_refused(flags, words, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(["train", "a2c", CARTPOLE, *flags.split()])
    assert left.value.code == 2
    assert capsys.readouterr().err == f"tessera: {words}\n"
    assert not list(tmp_path.iterdir())
