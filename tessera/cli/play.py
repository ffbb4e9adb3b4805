"""`tessera play`: a person plays a game against the agent of a run, in the terminal."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from tessera.cli.flags import check_flags, read_flags
from tessera.cli.options import TrustOptions
from tessera.errors import TesseraError

HELP = "? lists the moves that are allowed, quit ends the game"


@dataclass
class PlayOptions(TrustOptions):
    """Play a game against the agent of a run."""

    run: tyro.conf.Positional[Path]
    """Run directory of a game for two players, or an agent that was saved."""
    side: Literal["first", "second", "random"] = "random"
    """Which move you have: the first, the second, or as it is drawn."""
    seed: int | None = None
    """Seed of what is drawn: sides, cards, the agent's search; default: another one each time."""
    checkpoint: str = "newest"
    """newest, best, or the number of the update whose checkpoint to take."""


def play_command(arguments: list[str]) -> None:
    """Run `tessera play`."""
    check_flags(arguments, PlayOptions)
    options = read_flags(PlayOptions, arguments, "tessera play")
    from tessera.evaluation.live_game import LiveGame
    from tessera.runs.matches import as_opponent
    from tessera.runs.saved_run import load_run
    from tessera.support.cache import use_compilation_cache

    use_compilation_cache()
    saved = load_run(options.run, options.trusted(), options.checkpoint)
    check_playable(saved)
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    begins = {"first": True, "second": False, "random": None}[options.side]
    try:
        game = LiveGame(saved.env, as_opponent(saved), seed, begins)
        print(f"{saved.env.name} against {saved.folder}, update {saved.update}; seed {seed}. You move ", end="")
        print(f"{'first' if game.begins else 'second'}. {HELP}.")
        _play(game)
    except (EOFError, KeyboardInterrupt):
        print("\nThe game ends here.")


def check_playable(saved: Any) -> None:
    """Refuse what is no game for a person and an agent."""
    env, folder = saved.env, saved.folder
    if env.opponent:
        raise TesseraError(
            f"{folder} was trained on {env.name}, in which {env.opponent} plays the side that would be yours: choose a "
            "run of the game without ?opponent="
        )
    if env.spec.players != 2:
        raise TesseraError(f"{folder} was trained on {env.name}, which is no game of two players who take turns")
    if not hasattr(env, "drawn"):
        raise TesseraError(f"{env.name} has no drawing of its board, so nobody could see it: play one of pgx's games")


def _play(game: Any) -> None:
    """Ask and answer until the game is over, or the person has enough."""
    print(f"\n{game.drawn()}")
    while not game.over:
        if game.persons_turn:
            action = _asked(game)
            if action is None:
                print("The game ends here.")
                return
            game.play(action)
        else:
            print(f"\nthe agent plays {game.answer()}")
        print(f"\n{game.drawn()}")
    verdict = "You win" if game.earned > 0 else "The agent wins" if game.earned < 0 else "A draw"
    print(f"\n{verdict}{f' ({game.earned:+g})' if abs(game.earned) > 1 else ''}.")


def _asked(game: Any) -> int | None:
    """The person's move; None if there is to be none."""
    while True:
        text = input("your move: ").strip()
        if text.lower() in ("quit", "exit", "q"):
            return None
        if text == "?":
            names = game.move_names()
            print(", ".join(f"{names[action]} ({action})" for action in game.legal))
        elif text:
            try:
                return game.read(text)
            except TesseraError as error:
                print(error)
