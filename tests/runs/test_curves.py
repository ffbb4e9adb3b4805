"""Which returns a learning curve is of."""

from __future__ import annotations

import json

import pytest

from tessera.runs.curves import _curve


@pytest.mark.parametrize(
    ("opponent", "evaluated", "expected", "told"),
    [
        ("greedy", True, [-0.5, 0.5], "greedy"),  # in self-play nobody wins on average
        ("greedy", False, [0.0, 0.0], ""),
        (None, True, [0.0, 0.0], ""),
    ],
)
def test_a_curve_is_of_evaluations_where_an_opponent_was_played(
    tmp_path, monkeypatch, opponent, evaluated, expected, told
):
    rows = [{"update": k, "env_steps": 10 * k, "train_return_mean": 0.0} for k in (1, 2)]
    if evaluated:
        rows = [{**row, "eval/return_mean": x} for row, x in zip(rows, (-0.5, 0.5), strict=True)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr("tessera.runs.curves.run_folders", lambda folder: [folder])  # one run, and no seeds
    curve = _curve(tmp_path, opponent)
    assert (curve.steps, curve.middle, curve.opponent) == ([10, 20], expected, told)
