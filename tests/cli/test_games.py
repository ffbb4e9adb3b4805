"""Games on the command line: train, evaluate against opponents, and let runs play each other."""

from __future__ import annotations

import itertools
import json

import pytest

from tessera.cli.main import main
from tessera.evaluation import many_runs

SMALL = {"unroll": 4, "simulations": 4, "draws": 1, "batch": 32, "channels": 4, "blocks": 1, "envs": 8}


def flags(options: dict[str, int]) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("games")
    common = ["--steps", "600", "--eval-episodes", "20", "--opponent", "greedy"]
    main(["train", "alphazero", "pgx:tic_tac_toe", *flags(SMALL), "--quiet", *common, "--run-dir", str(folder / "a")])
    more = ["--unroll", "8", "--envs", "8", "--widths", "8", "--quiet"]
    main(["train", "ppo", "pgx:tic_tac_toe", *more, *common, "--run-dir", str(folder / "b")])
    return folder


def test_a_run_is_evaluated_against_an_opponent(runs, capsys):
    assert json.loads((runs / "a" / "config.json").read_text())["opponent"] == "greedy"
    for opponent in ([], ["--opponent", "random"], ["--opponent", str(runs / "b")]):
        main(["eval", str(runs / "a"), "--episodes", "20", *opponent, "--format", "json"])
        (found,) = json.loads(capsys.readouterr().out)["runs"]
        assert found["opponent"] == (opponent[-1] if opponent else "greedy")
        assert found["won"] + found["drawn"] + found["lost"] == 20
        assert found["return_mean"] == pytest.approx((found["won"] - found["lost"]) / 20)
    summary = json.loads((runs / "a" / "summary.json").read_text())
    assert summary["eval_opponent"] == "greedy"
    assert summary["eval_won"] + summary["eval_drawn"] + summary["eval_lost"] == 20


@pytest.mark.slow
def test_the_opponent_decides_what_is_best_and_when_to_stop(tmp_path, capsys):
    """A search beats a player who plays at random, whatever its network, so the first evaluation reaches the target."""
    options = ["--evaluate-every", "1", "--target-return", "0.1", "--eval-episodes", "40", "--opponent", "random"]
    folder = tmp_path / "run"
    main(["train", "alphazero", "pgx:tic_tac_toe", *flags({**SMALL, "simulations": 16}), "--steps", "600", *options,
          "--run-dir", str(folder)])  # fmt: skip
    said = capsys.readouterr().out
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["stopped_early"]
    assert summary["best_return_mean"] >= 0.1
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["eval/return_mean"] == pytest.approx(summary["best_return_mean"], abs=1e-4)
    assert f"against random: {summary['eval_won']} won, " in said
    main(["eval", str(folder), "--checkpoint", "best", "--episodes", "10"])
    assert "against random: " in capsys.readouterr().out


def test_runs_play_each_other(runs, capsys):
    a, b = str(runs / "a"), str(runs / "b")
    main(["match", a, b, "random", "--games", "20", "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    assert [(g["first"], g["second"]) for g in found["games"]] == [(a, b), (a, "random"), (b, "random")]
    assert all(g["won"] + g["drawn"] + g["lost"] == 20 for g in found["games"])
    assert set(found["elo"]) == {a, b, "random"}
    main(["match", a, b, "--games", "20"])
    assert "Elo" in capsys.readouterr().out


def test_workers_do_not_change_the_games(runs, capsys, monkeypatch):
    monkeypatch.setattr(many_runs, "BATCH", 8)
    found = []
    for workers in ("1", "2"):
        players = [str(runs / "b"), "random"]
        main(["match", *players, "--games", "20", "--workers", workers, "--engine", "local", "--format", "json"])
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]


@pytest.mark.slow
def test_everybody_plays_everybody_also_those_who_need_no_learning(runs, capsys):
    players = [str(runs / "b"), str(runs / "a"), "random", "mcts:16"]
    main(["match", *players, "--games", "40", "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    pairs = [(g["first"], g["second"]) for g in found["games"]]
    assert pairs == list(itertools.combinations(players, 2))
    assert found["games"][-1]["lost"] > found["games"][-1]["won"]  # random against a search
    assert found["elo"]["mcts:16"]["rating"] > found["elo"]["random"]["rating"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["match", "A"], "two players or more"),
        (["match", "A", "A"], "named twice"),
        (["match", "random", "greedy"], "none of these is a run"),
        (["eval", "A", "--opponent", "nobody"], "there is no such folder"),
        (["match", "A", "B", "--games", "1"], "at least 2"),
        (["match", "A", "B", "--workers", "0"], "at least one is needed"),
        (["match", "A", "solver:bitbully"], "solver:bitbully plays pgx:connect_four, and not pgx:tic_tac_toe"),
        (["eval", "A", "--opponent", "solver:x"], "unknown solver 'x'"),
        (["eval", "A", "--opponent", "mcts:many"], "from 1 to 10,000"),
    ],
)
def test_what_cannot_be_played_is_said_in_one_sentence(runs, arguments, said, capsys):
    known = {"A": str(runs / "a"), "B": str(runs / "b")}
    with pytest.raises(SystemExit) as ended:
        main([known.get(x, x) for x in arguments])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
