"""The lives of a population's members: from the beginning, or from a copy, to the copy that takes their place.

Nothing here reads a file: the picture of a lineage and the dashboard share it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class LineageRow(NamedTuple):
    """A row of a lineage."""

    update: int
    seed: int
    parent: int | None
    """The seed whose state it has from here on; None at the beginning."""
    score: float | None
    """Return of its training episodes since the exchange before, if that is known."""
    tuned: Mapping[str, float]


@dataclass
class Life:
    """A stretch of a member's training, with the same values of what is tuned."""

    seed: int
    begin: int
    """The update that it begins after."""
    end: int
    """The newest exchange that it has come to."""
    parent: int | None
    """The life that it is a copy of: its place among all lives."""
    tuned: Mapping[str, float]
    score: float | None = None
    """The newest training return that is known."""
    is_replaced: bool = False
    """Whether a copy of another has taken its place."""


def lives_of(steps: Iterable[LineageRow]) -> list[Life]:
    """All lives, by when they begin; whoever is copied begins before its copies.

    Rows may begin in the middle of a lineage: what a member has first is where its first life begins.
    """
    lives: list[Life] = []
    newest: dict[int, int] = {}
    for update, exchange in itertools.groupby(sorted(steps, key=lambda step: step.update), lambda step: step.update):
        before = dict(newest)  # states are copied as they were, whatever becomes of their owners
        for step in exchange:
            mine = before.get(step.seed)
            is_copy = step.parent is not None and step.parent != step.seed
            if mine is not None:
                lives[mine].end = update
                lives[mine].score = lives[mine].score if step.score is None else step.score
                lives[mine].is_replaced = is_copy
            if mine is None or is_copy:
                newest[step.seed] = len(lives)
                parent = before.get(step.parent) if is_copy and step.parent is not None else None
                lives.append(Life(step.seed, update, update, parent, step.tuned))
    return lives


def newest_lives(lives: Sequence[Life]) -> dict[int, int]:
    """Seed -> the place of its newest life."""
    return {life.seed: place for place, life in enumerate(lives)}


def line_of_descent(lives: Sequence[Life], seed: int) -> list[int]:
    """The places of the lives that a member has its state from, the oldest first and its own newest last."""
    place: int | None = newest_lives(lives)[seed]
    line = []
    while place is not None:
        line.append(place)
        place = lives[place].parent
    return line[::-1]


def best_member(seeds: Iterable[int], evaluated: Mapping[int, float], trained: Mapping[int, float]) -> int | None:
    """The seed with the highest evaluation, or before there are any, training return; None if nothing is known."""
    known = evaluated or trained
    return max(
        (seed for seed in seeds if seed in known),
        key=lambda seed: (known[seed], trained.get(seed, float("-inf")), -seed),
        default=None,
    )
