"""`tessera match`: let the agents of runs play a game against each other, and rate them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from tessera.cli.flags import check_flags, read_flags
from tessera.cli.options import TrustOptions
from tessera.errors import TesseraError, unknown_name

FORMATS = ("table", "json")
MOST_DRAWN = 40


@dataclass
class MatchOptions(TrustOptions):
    """Let the agents of two runs or more play each other, on both sides."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories of one game; random, greedy, mcts, mcts:256 and solver:bitbully are players too."""
    games: int = 1000
    """Games of each pair."""
    openings: int = 2
    """Moves at the beginning of each game that are drawn, so that games of agents that never vary differ."""
    seed: int = 0
    """Seed of the games."""
    checkpoint: str = "newest"
    """newest, best, or the number of the update whose checkpoint to take, of each run."""
    workers: int | None = None
    """Batches of games played at a time; default: one, or as many as there are cores if an engine is named."""
    engine: Literal["serial", "local", "ray"] | None = None
    """Where games are played: this process (serial), processes (local) or tasks of a cluster (ray); default: local for
    several workers."""
    address: str | None = None
    """Ray cluster for --engine ray; default: the one that `tessera cluster up` started, else one for this command."""
    format: str = "table"
    """table or json."""


def match_command(arguments: list[str]) -> None:
    """Run `tessera match`."""
    check_flags(arguments, MatchOptions)
    options = read_flags(MatchOptions, arguments, "tessera match")
    names = [str(run) for run in options.runs]
    if len(names) < 2:
        raise TesseraError("a match needs two players or more: name run directories, random, greedy or mcts")
    if len(set(names)) < len(names):
        raise TesseraError("a player is named twice: name each once")
    if options.games < 2:
        raise TesseraError(f"--games {options.games}: at least 2 are needed, one for each side")
    if not 0 <= options.openings <= MOST_DRAWN:
        raise TesseraError(f"--openings {options.openings}: from 0 to {MOST_DRAWN}")
    if options.workers is not None and options.workers < 1:
        raise TesseraError(f"--workers {options.workers}: at least one is needed")
    if options.format not in FORMATS:
        raise unknown_name("format", options.format, FORMATS)
    from tessera.evaluation.ratings import rated, rating_intervals
    from tessera.runs.matches import play_match
    from tessera.support.accelerators import share_accelerators
    from tessera.support.cache import use_compilation_cache

    use_compilation_cache()
    if options.engine not in (None, "serial") or (options.workers or 1) > 1:
        share_accelerators()
    results = play_match(
        names, options.games, options.openings, options.seed, options.checkpoint, options.trusted(),
        workers=options.workers, engine=options.engine, address=options.address,
    )  # fmt: skip
    ratings, intervals = rated(len(names), results), rating_intervals(len(names), results)
    if options.format == "json":
        print(json.dumps(_as_data(names, results, ratings, intervals), indent=2))
        return
    width = max(map(len, names))
    for r in results:
        low, high = r.interval()
        print(
            f"{names[r.first]:{width}} against {names[r.second]:{width}}  {r.won:,} won, {r.drawn:,} drawn, "
            f"{r.lost:,} lost: {r.score:.1%} of the points ({low:.1%} to {high:.1%})"
        )
    print("\nElo, with a mean of 0 (95 %)")
    for k in sorted(range(len(names)), key=lambda k: -ratings[k]):
        print(f"{names[k]:{width}}  {ratings[k]:+6.0f}  ({intervals[k][0]:+.0f} to {intervals[k][1]:+.0f})")


def _as_data(names: list[str], results: Any, ratings: Any, intervals: Any) -> dict[str, Any]:
    games = [
        {"first": names[r.first], "second": names[r.second], "won": r.won, "drawn": r.drawn, "lost": r.lost,
         "score": r.score, "interval": list(r.interval())}
        for r in results
    ]  # fmt: skip
    rated = zip(names, ratings, intervals, strict=True)
    elo = {name: {"rating": float(r), "interval": list(map(float, i))} for name, r, i in rated}
    return {"games": games, "elo": elo}
