"""Several seeds: each is the run that it would be alone, in one program or on processes, and has its own folder."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import tessera
from tessera.cli.main import main
from tessera.engines.population import PopulationEngine
from tessera.errors import RunFailed, TesseraError
from tessera.evaluation.intervals import interquartile_mean
from tessera.planning.prepare import prepare_plan
from tessera.runs import seeds_run
from tessera.runs.checkpoint import Checkpoints
from tessera.runs.metrics import read_metrics
from tessera.runs.run_options import RunOptions
from tessera.runs.saved_run import load_run
from tessera.runs.seed_folders import run_folders
from tessera.runs.seeds import joined_rows, joined_summary

CARTPOLE = "gymnax:CartPole-v1"
ALONE = "fused:devices=1"
SMALL = tessera.A2C(unroll=8, widths=(8,))
OPTIONS: dict[str, Any] = {"envs": 8, "eval_episodes": 2, "quiet": True}
UPDATE = 8 * 8
"""Environment steps of one update of `SMALL`."""

ALGORITHMS = [
    pytest.param(tessera.PPO(unroll=8, widths=(8,), minibatches=2, epochs=2), CARTPOLE, 4, id="ppo"),
    pytest.param(
        tessera.DQN(unroll=4, widths=(8,), capacity=256, batch=16, warmup=8, prioritised=True, n_step=3),
        CARTPOLE,
        4,
        id="dqn",
    ),
    pytest.param(
        tessera.PPO(unroll=8, widths=(8,), core="lstm", burn_in=2, minibatches=1), CARTPOLE, 3, id="lstm",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        tessera.R2D2(widths=(8,), core_width=4, capacity=256, batch=16, warmup=4), CARTPOLE, 4, id="r2d2",
        marks=pytest.mark.slow,
    ),
    pytest.param(tessera.IMPALA(unroll=8, widths=(8,)), CARTPOLE, 3, id="impala", marks=pytest.mark.slow),
    pytest.param(tessera.ES(widths=(8,)), CARTPOLE, 2, id="es", marks=pytest.mark.slow),
    pytest.param(tessera.QLearning(widths=(8,)), CARTPOLE, 3, id="q_learning", marks=pytest.mark.slow),
    pytest.param(
        tessera.DPG(unroll=4, widths=(8,), capacity=256, batch=16, warmup=8), "gymnax:Pendulum-v1", 4, id="dpg",
        marks=pytest.mark.slow,
    ),
    pytest.param(tessera.PPO(unroll=8), "gymnax:Breakout-MinAtar", 2, id="board", marks=pytest.mark.slow),
]  # fmt: skip


def difference(a: Any, b: Any) -> float:
    """The largest difference between two trees of arrays."""
    return max(jax.tree.leaves(jax.tree.map(lambda x, y: float(np.abs(np.subtract(x, y)).max()), a, b)))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("algorithm", "env", "updates"), ALGORITHMS)
def test_a_member_is_the_lone_run_of_its_seed(algorithm: Any, env: str, updates: int) -> None:
    bound, *_ = prepare_plan(algorithm, env, ALONE, envs=8, precision="f64")
    unrolls = updates + bound.schedule.warmup
    options = {**OPTIONS, "steps": 8 * bound.schedule.steps * unrolls, "precision": "f64"}
    together = tessera.train(algorithm, env, seeds=3, seed=4, **options)
    assert list(together.runs) == [4, 5, 6]
    for seed in (4, 6):
        alone, member = tessera.train(algorithm, env, ALONE, seed=seed, **options), together.runs[seed]
        assert alone.summary["updates"] == member.summary["updates"] == updates
        assert difference(alone.state.params, member.state.params) < 1e-9
        for name in ("env_steps", "episodes", "train_return_mean", "eval_return_mean", "eval_return_std"):
            assert alone.summary[name] == member.summary[name], name
        norms = [run.metrics[-1]["learn/gradient_norm"] for run in (alone, member)]
        assert norms[0] == pytest.approx(norms[1], abs=1e-9)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tessera.SeedResults:
    """Three seeds, twelve updates; tests leave the folder as it is."""
    folder = tmp_path_factory.mktemp("runs") / "seeds"
    return tessera.train(SMALL, CARTPOLE, seeds=3, seed=1, steps=12 * UPDATE, run_dir=folder, **OPTIONS)


def states(results: tessera.SeedResults) -> list[Any]:
    return [run.state for run in results.runs.values()]


def folder_of(results: tessera.SeedResults) -> Path:
    assert results.run_dir is not None
    return results.run_dir


def test_each_seed_has_a_run_folder_like_that_of_a_lone_run(whole: tessera.SeedResults) -> None:
    folder = folder_of(whole)
    assert [path.name for path in run_folders(folder)] == ["seed-1", "seed-2", "seed-3"]
    for seed, run in whole.runs.items():
        mine = folder / f"seed-{seed}"
        assert run.run_dir == mine
        saved = load_run(mine)
        assert saved.update == 12
        assert saved.config["seed"] == seed
        assert "seeds" not in saved.config
        assert difference(saved.view.params, run.params) == 0
        assert json.loads((mine / "summary.json").read_text()) == run.summary
        assert read_metrics(mine)[-1]["update"] == 12


def test_the_folder_around_them_tells_of_all_together(whole: tessera.SeedResults) -> None:
    folder = folder_of(whole)
    returns = [run.summary["eval_return_mean"] for run in whole.runs.values()]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary == whole.summary
    assert summary["eval_return_iqm"] == pytest.approx(interquartile_mean(np.asarray(returns)), abs=1e-4)
    assert summary["eval_return_min"] == min(returns)
    assert summary["eval_returns"] == {str(seed): value for seed, value in zip(whole.runs, returns, strict=True)}
    row = read_metrics(folder)[-1]
    lasts = [read_metrics(run)[-1]["train_return_mean"] for run in run_folders(folder)]
    assert (row["update"], row["seeds"]) == (12, 3)
    assert row["train_return_min"] == min(lasts)
    assert row["train_return_iqm_low"] <= row["train_return_iqm"] <= row["train_return_iqm_high"]


def test_the_page_on_metrics_names_all_entries(whole: tessera.SeedResults) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text()
    (section,) = [part for part in re.split(r"^## ", page, flags=re.MULTILINE) if part.startswith("Several seeds")]
    assert {*whole.summary, *whole.metrics[-1]} == set(re.findall(r"`([a-z_]+)`", section)) - {"metrics", "summary"}


def test_eval_and_plot_take_the_folder_for_all_of_its_seeds(
    whole: tessera.SeedResults, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["eval", str(folder_of(whole)), "--episodes", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0].rpartition("/")[2] for line in lines[:3]] == ["seed-1", "seed-2", "seed-3"]
    assert lines[3].startswith(f"3 runs on {CARTPOLE}: interquartile mean")
    main(["plot", str(folder_of(whole)), "-o", str(tmp_path / "curve.png")])
    assert (tmp_path / "curve.png").stat().st_size > 1000


def test_a_run_that_goes_on_ends_with_the_bits_of_one_that_never_stopped(
    whole: tessera.SeedResults, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    advance = PopulationEngine.advance
    monkeypatch.setattr(PopulationEngine, "advance", lambda self, count: advance(self, min(count, 2)))
    monkeypatch.setattr(RunOptions, "pause", lambda self, cost: 0.0)
    options: dict[str, Any] = {**OPTIONS, "seeds": 3, "seed": 1, "run_dir": tmp_path / "run"}
    first = tessera.train(SMALL, CARTPOLE, steps=12 * UPDATE, **{**options, "run_dir": tmp_path / "other"})
    jax.tree.map(np.testing.assert_array_equal, states(first), states(whole))
    shutil.copytree(tmp_path / "other", tmp_path / "run")
    for seed, kept in ((1, 1), (2, 0), (3, 2)):  # as if it had been killed while its seeds were saved, one by one
        checkpoints = tmp_path / "run" / f"seed-{seed}" / "checkpoints"
        updates = sorted(int(path.name) for path in checkpoints.iterdir() if path.name.isdigit())
        assert len(updates) == 3
        for update in updates[kept + 1 :]:
            shutil.rmtree(checkpoints / str(update))
    again = tessera.train(SMALL, CARTPOLE, steps=12 * UPDATE, resume=True, **options)
    jax.tree.map(np.testing.assert_array_equal, states(again), states(whole))
    rows = [row["update"] for row in read_metrics(tmp_path / "run" / "seed-2")]
    assert rows == sorted(set(rows))


def test_a_seed_of_several_goes_on_alone(whole: tessera.SeedResults, tmp_path: Path) -> None:
    shutil.copytree(folder_of(whole) / "seed-2", tmp_path / "run")
    options: dict[str, Any] = {**OPTIONS, "seed": 2, "run_dir": tmp_path / "run"}
    result = tessera.train(SMALL, CARTPOLE, ALONE, steps=14 * UPDATE, resume=True, **options)
    assert result.summary["updates"] == 14


def test_a_replay_comes_back_piece_by_piece(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tessera.support.streamed_arrays.PIECE_BYTES", 1024)
    algorithm = tessera.DQN(unroll=4, widths=(8,), capacity=512, batch=16, warmup=4)
    options: dict[str, Any] = {**OPTIONS, "seeds": 2, "run_dir": tmp_path / "run"}
    straight = tessera.train(algorithm, CARTPOLE, steps=12 * 32, **{**options, "run_dir": None})

    def stop(outcomes: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return outcomes

    with monkeypatch.context() as patched:
        after(3, patched, stop)
        with pytest.raises(SystemExit):
            tessera.train(algorithm, CARTPOLE, steps=12 * 32, **options)
    assert list((tmp_path / "run" / "seed-0" / "checkpoints").glob("3/large/*.npy"))
    again = tessera.train(algorithm, CARTPOLE, steps=12 * 32, resume=True, **options)
    assert again.runs[1].summary["updates"] == 8
    jax.tree.map(np.testing.assert_array_equal, states(again), states(straight))


def after(calls: int, monkeypatch: pytest.MonkeyPatch, event: Any) -> None:
    """Have something happen to what a population reports, at the call of that number; one update a call."""
    advance, made = PopulationEngine.advance, []

    def advancing(self: PopulationEngine, count: int) -> Any:
        made.append(count)
        outcomes = advance(self, 1)
        return event(outcomes) if len(made) == calls else outcomes

    monkeypatch.setattr(PopulationEngine, "advance", advancing)


def test_where_one_seed_fails_the_others_go_on(monkeypatch, tmp_path, capsys) -> None:
    after(3, monkeypatch, lambda outcomes: [outcomes[0], RunFailed("the cart has left the rails"), outcomes[2]])
    options = {**OPTIONS, "quiet": False, "seeds": 3, "run_dir": tmp_path / "run"}
    with pytest.raises(RunFailed, match="1 of 3 seeds failed, first seed 1: the cart has left the rails"):
        tessera.train(SMALL, CARTPOLE, steps=6 * UPDATE, **options)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["failed"] == {"1": "the cart has left the rails"}
    assert list(summary["eval_returns"]) == ["0", "2"]
    assert load_run(tmp_path / "run" / "seed-2").update == 6
    assert "seed 1 failed: the cart has left the rails" in capsys.readouterr().out


def test_a_signal_saves_every_seed_and_all_go_on_from_there(monkeypatch, tmp_path) -> None:
    def stop(outcomes: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return outcomes

    options: dict[str, Any] = {**OPTIONS, "seeds": 2, "run_dir": tmp_path / "run"}
    with monkeypatch.context() as patched:
        after(3, patched, stop)
        with pytest.raises(SystemExit) as left:
            tessera.train(SMALL, CARTPOLE, steps=6 * UPDATE, **options)
    assert left.value.code == 143
    for seed in (0, 1):
        assert Checkpoints(tmp_path / "run" / f"seed-{seed}" / "checkpoints", read_only=True).latest() == 3
    again = tessera.train(SMALL, CARTPOLE, steps=6 * UPDATE, resume=True, **options)
    straight = tessera.train(SMALL, CARTPOLE, steps=6 * UPDATE, **{**options, "run_dir": None})
    jax.tree.map(np.testing.assert_array_equal, states(again), states(straight))


def test_seeds_that_do_not_fit_into_memory_together_run_one_after_the_other(monkeypatch, tmp_path) -> None:
    advance, sizes = PopulationEngine.advance, []

    def too_large(self: PopulationEngine, count: int) -> Any:
        sizes.append(len(self.members))
        if len(self.members) > 1:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
        return advance(self, count)

    monkeypatch.setattr(PopulationEngine, "advance", too_large)
    result = tessera.train(SMALL, CARTPOLE, seeds=2, steps=2 * UPDATE, run_dir=tmp_path / "run", **OPTIONS)
    assert list(result.runs) == [0, 1]
    assert sizes[0] == 2
    assert set(sizes[1:]) == {1}


def test_each_seed_stops_at_its_own_target(monkeypatch) -> None:
    options = {**OPTIONS, "eval_episodes": 4, "target_return": 9.0, "steps": 300 * UPDATE}
    result = tessera.train(SMALL, CARTPOLE, seeds=3, **options)
    alone = [tessera.train(SMALL, CARTPOLE, ALONE, seed=seed, **options) for seed in range(3)]
    assert [run.summary["updates"] for run in result.runs.values()] == [run.summary["updates"] for run in alone]
    assert all(run.summary["stopped_early"] for run in result.runs.values())


def test_evaluations_during_training_are_played_by_the_same_program() -> None:
    result = tessera.train(SMALL, CARTPOLE, seeds=2, steps=6 * UPDATE, evaluate_every=2, **OPTIONS)
    for run in result.runs.values():
        assert {row["eval/update"] for row in run.metrics if "eval/update" in row} <= {*range(7)}
        assert run.metrics[-1]["eval/return_mean"] > 0


def test_seeds_of_a_host_environment_run_on_processes(tmp_path) -> None:
    options: dict[str, Any] = {"envs": 4, "eval_episodes": 2, "quiet": True, "steps": 6 * 4 * 8}
    result = tessera.train(SMALL, "CartPole-v1", seeds=2, seed=3, run_dir=tmp_path / "run", **options)
    alone = tessera.train(SMALL, "CartPole-v1", "fused:devices=1", seed=4, **options)
    assert difference(result.runs[4].params, alone.params) < 1e-5
    assert [path.name for path in run_folders(tmp_path / "run")] == ["seed-3", "seed-4"]
    assert set(json.loads((tmp_path / "run" / "summary.json").read_text())["eval_returns"]) == {"3", "4"}
    assert read_metrics(tmp_path / "run")[-1]["seeds"] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seeds", "0"], "--seeds 0: at least one is needed"),
        (["--seeds", "2", "--trace", "t.json"], "--trace shows one run: leave --seeds out"),
        (["--seeds", "two"], "--seeds two: a whole number is needed"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, words, monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(["train", "a2c", CARTPOLE, *arguments])
    assert left.value.code == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_of_one_seed_is_not_taken_for_one_of_several(whole: tessera.SeedResults, tmp_path: Path) -> None:
    options: dict[str, Any] = {**OPTIONS, "steps": 12 * UPDATE, "resume": True}
    folder = shutil.copytree(folder_of(whole), tmp_path / "run")
    with pytest.raises(TesseraError, match="holds a run of several seeds: add --seeds"):
        tessera.train(SMALL, CARTPOLE, ALONE, seed=1, run_dir=folder, **options)
    with pytest.raises(TesseraError, match="holds a run of one seed: leave out --seeds"):
        tessera.train(SMALL, CARTPOLE, seed=2, seeds=2, run_dir=folder / "seed-2", **options)
    with pytest.raises(TesseraError, match="holds several seeds: name one of them"):
        load_run(folder)


def test_a_number_of_seeds_that_a_folder_makes_up_is_not_counted_through(
    whole: tessera.SeedResults, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(folder_of(whole), tmp_path / "run"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "seeds": 10**15}))
    assert len(run_folders(folder)) == 3
    (folder / "config.json").write_text(json.dumps({**config, "seeds": "many"}))
    with pytest.raises(TesseraError, match="'seeds' is no number of seeds"):
        run_folders(folder)


def test_joined_rows_take_the_newest_of_each_seed() -> None:
    def row(update: int, mean: float | None) -> dict[str, Any]:
        return {"update": update, "env_steps": update * 10, "seconds": 1.0, "steps_per_second": 5.0,
                "train_return_mean": mean}  # fmt: skip

    rows = joined_rows([[row(1, None), row(3, 2.0), row(5, 4.0)], [row(2, 6.0)]])
    assert [r["update"] for r in rows] == [1, 3, 5]
    assert [r["seeds"] for r in rows] == [1, 2, 2]
    assert np.isnan(rows[0]["train_return_iqm"])
    assert [r["train_return_mean"] for r in rows[1:]] == [4.0, 5.0]
    assert (rows[2]["train_return_min"], rows[2]["train_return_max"]) == (4.0, 6.0)
    assert joined_rows([[], []]) == []


def test_the_summary_of_no_seed_at_all_has_no_figures() -> None:
    config = {
        "algorithm": {"name": "a2c"},
        "env": CARTPOLE,
        "policy": "fused",
        "engine": "serial",
        "seed": 0,
        "seeds": 1,
    }
    summary = joined_summary(config, {}, {0: "why"}, 1.0)
    assert summary["eval_return_iqm"] is None
    assert summary["failed"] == {"0": "why"}


def test_progress_of_seeds_on_processes_is_read_off_their_folders(whole: tessera.SeedResults) -> None:
    run = next(iter(whole.runs.values()))
    shown = seeds_run.progress_in(folder_of(whole) / "seed-1", 24)
    assert shown is not None
    assert (shown.update, shown.updates, shown.env_steps) == (12, 24, run.summary["env_steps"])
    assert seeds_run.progress_in(folder_of(whole) / "seed-9", 24) is None
