"""What a run leaves behind, and what can be done with it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest
from test_metrics import documented_names

import tessera
from tessera import policies
from tessera.api import train
from tessera.cli.main import main
from tessera.envs import is_device
from tessera.errors import TesseraError
from tessera.runs import directory
from tessera.runs.curves import plot
from tessera.runs.metrics import read_metrics
from tessera.runs.saved_run import load_run

REQUIRED = {
    *("algorithm", "env", "policy", "engine", "seed", "env_steps", "updates", "wall_seconds", "startup_seconds"),
    *("steps_per_second", "train_return_mean", "eval_return_mean", "solved"),
}
"""What summary.json holds at the least."""


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> tessera.Result:
    """A short real run; tests leave its directory as it is."""
    return train(
        tessera.PPO(widths=(8,), unroll=8),
        "gymnax:CartPole-v1",
        policies.get("fused", devices=1),
        steps=4_096,
        envs=16,
        seed=3,
        run_dir=tmp_path_factory.mktemp("runs") / "deep" / "run",
        eval_episodes=100,
        quiet=True,
    )


@pytest.fixture
def folder(result: tessera.Result) -> Path:
    assert result.run_dir is not None
    return result.run_dir


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """The run directory again, to be damaged."""
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def test_a_run_leaves_every_file_behind(folder: Path) -> None:
    names = {p.name for p in folder.iterdir()}
    events = {n for n in names if n.startswith("events.out.tfevents.")}
    assert len(events) == 1
    assert names - events == {"config.json", "plan.json", "metrics.jsonl", "checkpoints", "live", "summary.json"}
    assert [p.name for p in (folder / "checkpoints").iterdir() if p.name.isdigit()]


def test_the_configuration_holds_every_field_and_rebuilds_the_algorithm(folder: Path, result: tessera.Result) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert {k: config[k] for k in ("env", "policy", "seed", "envs", "steps")} == {
        "env": "gymnax:CartPole-v1",
        "policy": "fused",
        "seed": 3,
        "envs": 16,
        "steps": 4_096,
    }
    assert config["algorithm"]["widths"] == [8]
    assert load_run(folder).algorithm == result.algorithm


def test_the_plan_is_saved_as_data(folder: Path, result: tessera.Result) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    assert plan == json.loads(json.dumps(result.plan.to_json()))
    assert plan["fragments"][0]["operators"] == ["env", "act", "store", "grad", "apply"]


def test_the_summary_holds_every_promised_field_with_numbers_that_agree(folder: Path, result: tessera.Result) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    assert set(summary) >= REQUIRED
    assert summary == result.summary
    assert (summary["algorithm"], summary["env"], summary["engine"]) == ("ppo", "gymnax:CartPole-v1", "serial")
    assert summary["env_steps"] == 4_096
    assert summary["updates"] == 4_096 // (8 * 16)
    assert summary["eval_episodes"] == 100
    assert 0 < summary["wall_seconds"] < 300
    assert 0 < summary["startup_seconds"] < 300
    assert summary["steps_per_second"] > 0
    assert 8 <= summary["train_return_mean"] <= 500
    assert 8 <= summary["eval_return_mean"] <= 500
    assert summary["target_return"] == 475
    assert summary["solved"] is (summary["eval_return_mean"] >= 475)
    assert summary["stopped_early"] is False


def test_metrics_are_rows_under_documented_names_that_end_where_the_summary_does(
    folder: Path, result: tessera.Result
) -> None:
    rows = read_metrics(folder)
    assert set().union(*rows) <= documented_names("metrics.jsonl")
    assert set(result.summary) == documented_names("summary.json")
    assert {"learn/loss", "learn/policy_loss", "learn/value_loss", "learn/entropy", "learn/kl"} <= set(rows[0])
    assert [row["update"] for row in rows] == [row["update"] for row in result.metrics]
    for name in ("env_steps", "episodes"):
        assert rows[-1][name] == result.summary[name]
    assert rows[-1]["update"] == result.summary["updates"]
    assert rows[-1]["train_return_mean"] == pytest.approx(result.summary["train_return_mean"], abs=1e-4)


def test_no_file_holds_a_pickle(folder: Path) -> None:
    files = [p for p in folder.rglob("*") if p.is_file()]
    assert len(files) > 8
    for path in files:
        assert path.suffix not in (".pkl", ".pickle")
        head = path.read_bytes()[:2]
        assert not (head[:1] == b"\x80" and head[1:] in (b"\x02", b"\x03", b"\x04", b"\x05")), path


def test_events_hold_the_same_scalars(folder: Path) -> None:
    (events,) = folder.glob("events.out.tfevents.*")
    content = events.read_bytes()
    assert all(name.encode() in content for name in read_metrics(folder)[-1] if name != "update")


def test_the_result_plays_and_acts(result: tessera.Result) -> None:
    kernel = result.params["params"]["policy_head"]["kernel"]
    assert isinstance(kernel, np.ndarray)
    assert kernel.shape == (8, 2)
    evaluation = result.evaluate(episodes=100)
    assert len(evaluation.returns) == len(evaluation.lengths) == 100
    assert np.array_equal(evaluation.returns, result.evaluate(episodes=100).returns), "one seed, one outcome"
    env = gymnasium.make("CartPole-v1")
    observation, _ = env.reset(seed=0)
    action = result.act(observation)
    assert action.shape == ()
    assert env.action_space.contains(action.astype(np.int64)[()])
    assert result.act(observation) == action


def test_a_saved_run_is_the_result(folder: Path, result: tessera.Result) -> None:
    run = load_run(folder)
    assert run.update == result.summary["updates"]
    for saved, kept in zip(jax.tree.leaves(run.view.params), jax.tree.leaves(result.params), strict=True):
        assert np.asarray(saved).tobytes() == np.asarray(kept).tobytes()


def test_eval_plays_the_newest_params(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["eval", str(folder), "--episodes", "5"])
    shown = capsys.readouterr()
    assert shown.out.startswith("return ")
    assert shown.out.endswith("5 greedy episodes\n")
    assert shown.err == ""


def test_a_run_in_ones_own_class_can_be_played_by_the_name_of_the_class(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config["env"] = "gymnasium.envs.classic_control.CartPoleEnv"  # as tessera.train notes a class that it is given
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(TesseraError, match="is not one of Tessera's"):
        load_run(copy)
    run = load_run(copy, trust=True)
    assert not is_device(run.env)
    assert run.env.spec.observation_shape == (4,)
    config["env"] = "an object of mine"
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        TesseraError, match="'an object of mine' was passed to train as an object and cannot be made again"
    ):
        load_run(copy, trust=True)


def test_plot_writes_a_picture_of_one_run_or_several(
    folder: Path, copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "x.png"
    main(["plot", str(folder), str(copy), "-o", str(out)])
    assert out.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out == f"wrote {out}\n"


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    shown = capsys.readouterr()
    assert left.value.code == 2
    assert shown.err.startswith("tessera: ")
    assert shown.err.count("\n") == 1
    return shown.err


def test_damaged_folders_are_named_in_one_line(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is not a run directory: it has no config.json" in refused(capsys, "eval", str(tmp_path / "nowhere"))
    assert "it has no config.json" in refused(capsys, "plot", str(tmp_path / "nowhere"))
    shutil.rmtree(copy / "checkpoints")
    assert "has no checkpoint yet" in refused(capsys, "eval", str(copy))
    (copy / "checkpoints").mkdir()
    assert "has no checkpoint yet" in refused(capsys, "eval", str(copy))
    (copy / "metrics.jsonl").unlink()
    assert "has no finished episode to draw" in refused(capsys, "plot", str(copy), "-o", str(tmp_path / "y.png"))
    for damaged in (b'{"env": ', b"\xff\x00", b"[]", b"{}"):
        (copy / "config.json").write_bytes(damaged)
        assert "config.json is damaged" in refused(capsys, "eval", str(copy))
    assert not (tmp_path / "y.png").exists()


def test_a_picture_that_cannot_be_written_is_refused(folder: Path, tmp_path: Path) -> None:
    for out in (tmp_path / "no" / "x.png", tmp_path / "x.unknown"):
        with pytest.raises(TesseraError, match="cannot write"):
            plot([folder], out)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_used_is_refused_before_anything_is_made(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.check_fresh(tmp_path)
    directory.check_fresh(tmp_path / "new" / "deep")
    (tmp_path / "file").touch()
    for bad in (tmp_path / "file", tmp_path / "file" / "sub"):
        with pytest.raises(TesseraError, match="is a file: choose another"):
            directory.check_fresh(bad)
    with pytest.raises(TesseraError, match="already holds a run"):
        directory.check_fresh(folder)
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(TesseraError, match="may not be written to"):
        directory.check_fresh(tmp_path / "new")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_turns_out_unwritable_is_the_users_to_solve() -> None:
    with pytest.raises(TesseraError, match="cannot be written to"):
        directory.begin(Path("/proc/tessera/run"), {}, {})


def test_a_quiet_run_without_a_run_directory_prints_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = train(
        tessera.PPO(widths=(8,), unroll=8),
        "gymnax:CartPole-v1",
        policies.get("fused", devices=1),
        steps=256,
        envs=16,
        eval_episodes=1,
        quiet=True,
    )
    assert result.run_dir is None
    assert len(result.metrics) == 2
    assert capsys.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_a_run_stops_once_greedy_episodes_reach_the_target(tmp_path: Path) -> None:
    result = train(
        tessera.PPO(widths=(8,), unroll=8),
        "gymnax:CartPole-v1",
        policies.get("fused", devices=1),
        steps=100_000,
        envs=16,
        target_return=9.0,
        eval_episodes=4,
        quiet=True,
    )
    assert result.summary["stopped_early"] is True
    assert result.summary["solved"] is True
    assert result.summary["target_return"] == 9.0
    assert result.summary["env_steps"] < 20_000
