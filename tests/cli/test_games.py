"""Games on the command line: train, evaluate against opponents, and let runs play each other."""

from __future__ import annotations

import json

import pytest

from tessera.cli.main import main

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
        assert -1 <= found["return_mean"] <= 1


def test_runs_play_each_other(runs, capsys):
    a, b = str(runs / "a"), str(runs / "b")
    main(["match", a, b, "random", "--games", "20", "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    assert [(g["first"], g["second"]) for g in found["games"]] == [(a, b), (a, "random"), (b, "random")]
    assert all(g["won"] + g["drawn"] + g["lost"] == 20 for g in found["games"])
    assert set(found["elo"]) == {a, b, "random"}
    main(["match", a, b, "--games", "20"])
    assert "Elo" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["match", "A"], "two players or more"),
        (["match", "A", "A"], "named twice"),
        (["match", "random", "greedy"], "none of these is a run"),
        (["eval", "A", "--opponent", "nobody"], "there is no such folder"),
        (["match", "A", "B", "--games", "1"], "at least 2"),
    ],
)
def test_what_cannot_be_played_is_said_in_one_sentence(runs, arguments, said, capsys):
    known = {"A": str(runs / "a"), "B": str(runs / "b")}
    with pytest.raises(SystemExit) as ended:
        main([known.get(x, x) for x in arguments])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
