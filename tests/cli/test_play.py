"""A person plays against a run, in the terminal."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

from tessera import TesseraError
from tessera.cli.main import main
from tessera.cli.play import check_playable
from tessera.envs import make


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("play")
    more = ["--unroll", "8", "--envs", "8", "--widths", "8", "--quiet", "--steps", "64", "--eval-episodes", "2"]
    for name, game in {"board": "tic_tac_toe", "cards": "kuhn_poker"}.items():
        main(["train", "ppo", f"pgx:{game}", *more, "--run-dir", str(folder / name)])
    return folder


def play(monkeypatch, capsys, typed: str, *arguments: str) -> str:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    capsys.readouterr()
    main(["play", *map(str, arguments)])
    return capsys.readouterr().out


def test_a_game_is_played_to_its_end(runs, monkeypatch, capsys):
    cells = "".join(f"{cell}\n" for cell in range(9))  # those that are taken are refused, and the next is asked for
    said = play(monkeypatch, capsys, cells * 2, runs / "board", "--side", "first", "--seed", "1")
    assert "You move first." in said
    assert said.splitlines()[-1] in ("You win.", "The agent wins.", "A draw.")
    assert "the agent plays " in said
    assert said == play(monkeypatch, capsys, cells * 2, runs / "board", "--side", "first", "--seed", "1")


def test_moves_are_listed_explained_and_asked_for_again(runs, monkeypatch, capsys):
    typed = "?\nz9\n99999999999\n\nB2\n" + "b2\nquit\n"
    said = play(monkeypatch, capsys, typed, runs / "board", "--side", "first", "--seed", "3")
    assert "a1 (0), b1 (1)" in said
    assert "z9 is no move: write it as in b2" in said
    assert "99999999999 is no move" in said
    assert " 2 . X ." in said
    assert "b2 is not allowed now" in said
    assert said.endswith("The game ends here.\n")


def test_the_end_of_input_and_an_interrupt_end_the_game(runs, monkeypatch, capsys):
    said = play(monkeypatch, capsys, "", runs / "board", "--side", "second")
    assert "the agent plays" in said
    assert said.endswith("The game ends here.\n")

    def interrupt(prompt: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", interrupt)
    main(["play", str(runs / "board"), "--side", "first"])
    assert capsys.readouterr().out.endswith("The game ends here.\n")


def test_cards_of_the_other_one_are_shown_at_the_end_only(runs, monkeypatch, capsys):
    said = play(monkeypatch, capsys, "pass\npass\n", runs / "cards", "--side", "first", "--seed", "0")
    during, _, end = said.partition("who began had ")
    assert "your card: " in during
    assert "the other one " not in during
    assert "the other one " in end


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere"),
        (["board", "--checkpoint", "x"], "choose newest, best, or the number of an update"),
        (["board", "--side", "third"], "--side"),
    ],
)
def test_what_cannot_be_played_is_said_in_one_sentence(runs, arguments, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["play", str(runs / arguments[0]), *arguments[1:]])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("pgx:tic_tac_toe?opponent=random", "in which random plays the side that would be yours"),
        ("gymnax:CartPole-v1", "gymnax:CartPole-v1, which is no game of two players who take turns"),
    ],
)
def test_what_is_no_game_for_a_person_and_an_agent_is_refused(env, said):
    with pytest.raises(TesseraError, match=said):
        check_playable(SimpleNamespace(env=make(env), folder="runs/a"))


def test_a_game_that_cannot_be_drawn_is_refused():
    game = SimpleNamespace(name="mine", opponent="", spec=SimpleNamespace(players=2))
    with pytest.raises(TesseraError, match="mine has no drawing of its board"):
        check_playable(SimpleNamespace(env=game, folder="runs/a"))
