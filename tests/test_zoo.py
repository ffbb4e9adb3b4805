"""The rows of docs/scores.md: each is a command that is understood, and the page says which have not been run."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from tessera.cli.options import parse_arguments
from tessera.cli.train import TrainOptions

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
import scores_page
import zoo

ROWS = zoo.read_rows()


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_every_row_is_a_command_that_is_understood(row):
    world, options, _ = parse_arguments("train", row.arguments[1:], TrainOptions)
    assert (world.env, options.seeds, options.steps) == (row.env, row.seeds, row.steps)
    assert row.score in ("training", "greedy")
    assert row.seeds >= (8 if ":" in row.env and not row.env.startswith(("ale:", "brax:")) else 3)


def test_a_rows_result_is_written_and_shown_and_a_row_without_one_is_said_to_be_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "RUNS", tmp_path / "runs")
    small = {"steps": 512, "seeds": 2, "flags": "--envs 8 --unroll 32 --eval-episodes 2"}
    row = dataclasses.replace(ROWS["ppo-cartpole"], **small)
    result = zoo.run_row(row, tmp_path / "scores")
    assert result == json.loads((tmp_path / "scores" / "ppo-cartpole.json").read_text())
    assert (result["seeds"], len(result["greedy"]), result["steps"]) == ([100, 101], 2, 512)
    assert not (tmp_path / "runs" / "ppo-cartpole").exists()
    missing = dataclasses.replace(ROWS["dqn-cartpole"], why_not="nobody did")
    scores_page.write_page([row, missing], tmp_path / "scores")
    page = (tmp_path / "scores.md").read_text()
    assert f"| `{row.env}` | 512 | 2, greedy |" in page
    assert f"- dqn on `{missing.env}`: nobody did" in page
    assert (tmp_path / "scores" / "ppo.png").exists()


def test_the_return_is_an_interquartile_mean_with_its_interval():
    middle, median, worst = scores_page.return_cells([0.0, 10.0, 20.0, 1000.0])
    assert middle.startswith("15.0 (")
    assert (median, worst) == ("15.0", "0.0")
