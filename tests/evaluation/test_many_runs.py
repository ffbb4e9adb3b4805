"""Evaluation in batches: the same episodes on any number of workers, and figures with intervals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera
from tessera.cli.main import main
from tessera.evaluation import many_runs
from tessera.evaluation.evaluator import Evaluator
from tessera.evaluation.intervals import bootstrap_interval, interquartile_mean
from tessera.evaluation.summary import score_figures
from tessera.runs.saved_run import load_run

ENV = "gymnax:CartPole-v1"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two short runs."""
    where = tmp_path_factory.mktemp("runs")
    algorithm = tessera.PPO(unroll=8, widths=(8,), epochs=1, minibatches=1)
    for seed in (1, 2):
        tessera.train(
            algorithm, ENV, steps=2048, seed=seed, envs=8, run_dir=where / f"{seed}", eval_episodes=2, quiet=True
        )
    return [where / "1", where / "2"]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several batches of few episodes."""
    monkeypatch.setattr(many_runs, "BATCH", 8)


def test_the_same_episodes_are_played_by_any_number_of_workers(folders):
    here = tessera.evaluate_runs(folders, episodes=10, seed=3)
    assert [len(e.returns) for e in here] == [10, 10]
    for workers in (1, 2):
        there = tessera.evaluate_runs(folders, episodes=10, seed=3, workers=workers, engine="local")
        for a, b in zip(here, there, strict=True):
            assert (a.run, a.env, a.update) == (b.run, b.env, b.update)
            np.testing.assert_array_equal(a.returns, b.returns)
            np.testing.assert_array_equal(a.lengths, b.lengths)


def test_what_workers_are_sent_does_not_depend_on_their_number(folders, monkeypatch):
    sent: dict[int, Any] = {}

    def record(_: Any, reduce: Any, items: Any, workers: int, **others: Any) -> Any:
        sent[workers] = items
        return reduce([{"returns": np.ones(item["episodes"]), "lengths": np.ones(item["episodes"])} for item in items])

    monkeypatch.setattr(many_runs, "map_reduce", record)
    for workers in (1, 2, 4, 7):
        assert len(tessera.evaluate_run(folders[0], episodes=30, workers=workers).returns) == 30
    assert [item["episodes"] for item in sent[1]] == [8, 8, 8, 6]
    assert sent[1] == sent[2] == sent[4] == sent[7]


def test_batches_are_played_with_seeds_of_their_own(folders):
    whole = tessera.evaluate_run(folders[0], episodes=24, seed=3)
    first = tessera.evaluate_run(folders[0], episodes=8, seed=3)
    np.testing.assert_array_equal(whole.returns[:8], first.returns)
    saved = load_run(folders[0])
    plain = Evaluator(saved.algorithm, saved.env)(saved.view, 8, 3)
    np.testing.assert_array_equal(plain.returns, first.returns)
    assert len({tuple(whole.returns[k : k + 8]) for k in (0, 8, 16)}) == 3
    seeds = {many_runs.batch_seed(seed, number) for seed in range(-5, 20) for number in range(20)}
    assert len(seeds) == 25 * 20


def test_an_evaluation_has_intervals(folders):
    found = tessera.evaluate_run(folders[0], episodes=20)
    assert found.interval == bootstrap_interval(found.returns)
    assert found.interval[0] <= found.return_mean <= found.interval[1]
    assert found.iqm == interquartile_mean(found.returns)
    assert found.iqm_interval == bootstrap_interval(found.returns, interquartile_mean)
    assert found.return_median == np.median(found.returns)


def shown(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    main(["eval", *map(str, arguments)])
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


def test_one_run_is_summed_up_in_one_line(folders, capsys):
    found = tessera.evaluate_run(folders[0], episodes=10)
    line = shown(capsys, folders[0], "--episodes", 10)
    low, high = found.interval
    assert line.count("\n") == 1
    assert line.startswith(
        f"return {found.return_mean:.2f} ± {found.return_std:.2f} (95 % of means {low:.2f} to {high:.2f}"
    )
    assert f"interquartile mean {found.iqm:.2f} (95 % " in line
    assert line.endswith("10 greedy episodes\n")


def test_several_runs_are_summed_up_one_by_one_and_together(folders, capsys):
    lines = shown(capsys, *folders, "--episodes", 10).splitlines()
    assert [line.partition(": ")[0] for line in lines] == [*map(str, folders), f"2 runs on {ENV}"]
    data = json.loads(shown(capsys, *folders, "--episodes", 10, "--format", "json"))
    means = [np.mean(run["returns"]) for run in data["runs"]]
    assert [run["return_mean"] for run in data["runs"]] == pytest.approx(means)
    assert [(run["run"], run["env"], run["episodes"]) for run in data["runs"]] == [(str(f), ENV, 10) for f in folders]
    (together,) = data["environments"]
    assert together["runs"] == 2
    assert together["return_iqm"] == pytest.approx(np.mean(means))  # a quarter of two is none
    assert together["return_iqm_interval"] == pytest.approx(sorted(means))
    assert f"interquartile mean {together['return_iqm']:.2f}" in lines[-1]


def test_scores_of_several_environments_are_drawn_again_within_each(folders, capsys):
    def run(env: str, value: float) -> Any:
        return many_runs.RunEvaluation(np.array([value]), np.array([1]), Path("x"), env, 1)

    evaluations = [run("a", 50.0), run("b", -20.0), run("a", 50.0), run("b", -20.0)]
    figures = score_figures(evaluations, {"a": (0.0, 100.0), "b": (-20.0, 0.0)})
    assert figures == {"runs": 4, "iqm": 0.25, "iqm_interval": (0.25, 0.25)}  # 0.5, 0.5, 0 and 0, every time
    with pytest.raises(SystemExit):
        main(["eval", str(folders[0]), "--scale", "gymnax:CartPole-v0=0:500"])
    assert f"--scale says nothing of {ENV}, the environment of" in capsys.readouterr().err
    last = shown(capsys, *folders, "--episodes", 4, "--scale", f"{ENV}=0:500").splitlines()[-1]
    assert last.startswith("2 runs by score: interquartile mean 0.")
