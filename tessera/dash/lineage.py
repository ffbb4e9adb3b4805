"""Who goes on from whom in a population, as the page draws it: lives of members, and what the best one comes from."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tessera.dash.tails import LONGEST_LINE
from tessera.dash.tree import Tree
from tessera.dash.values import LARGEST_WHOLE, named, number, parse, text
from tessera.runs.lives import Life, LineageRow, best_member, line_of_descent, lives_of, newest_lives

FILE = "lineage.jsonl"
NEWEST_BYTES = 2 << 20
"""Bytes of the file that are read, from its end."""
MOST_COPIES = 1500
"""Copies that are passed on, the newest."""
MOST_MEMBERS = 256
MOST_TUNED = 30
"""Hyper-parameters that are passed on."""
MOST_KEPT = 16
"""Lineages that are kept in memory."""

Rows = dict[tuple[int, int], LineageRow]
"""(update, seed) -> its row."""


@dataclass(frozen=True)
class KnownLineage:
    """The newest rows of a lineage."""

    rows: Rows = field(default_factory=dict)
    is_cut: bool = False
    """Whether there are older rows, which are left out."""
    damaged: int = 0
    """Lines that are no rows."""
    left_out: int = 0
    """Members that are left out."""

    @cached_property
    def lives(self) -> list[Life]:
        """The lives of all members."""
        return lives_of(self.rows.values())

    @cached_property
    def own(self) -> dict[int, int]:
        """Seed -> the place of its newest life."""
        return newest_lives(self.lives)

    def with_origin(self, member: Mapping[str, Any]) -> dict[str, Any]:
        """A member with the seed that it was copied from last, and its newest values of what is tuned."""
        place = self.own.get(seed) if isinstance(seed := member["seed"], int) else None
        life = None if place is None else self.lives[place]
        origin = None if life is None or life.parent is None else self.lives[life.parent].seed
        return {**member, "copied_from": origin, "tuned": {} if life is None else dict(life.tuned)}


class LineageReader:
    """Reads lineages; one that has not changed is not read again."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._kept: dict[str, tuple[tuple[int, ...], KnownLineage]] = {}

    def read(self, name: str) -> KnownLineage:
        """The lineage of a population; an empty one if there is none yet."""
        found = self._tree.stat(name, FILE)
        if found is None:
            return KnownLineage()
        sign = (found.st_ino, found.st_size, found.st_mtime_ns)
        kept = self._kept.get(name)
        if kept is None or kept[0] != sign:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            kept = self._kept[name] = (sign, read_lineage(self._tree, name))
        return kept[1]


def read_lineage(tree: Tree, name: str) -> KnownLineage:
    """The newest rows of a population's lineage."""
    descriptor = tree.open(name, FILE)
    if descriptor is None:
        return KnownLineage()
    try:
        size = os.fstat(descriptor).st_size
        begin = max(0, size - NEWEST_BYTES)
        data = os.pread(descriptor, size - begin, begin)
    finally:
        os.close(descriptor)
    lines = [line for line in data.splitlines()[1 if begin else 0 :] if line.strip()]
    found = [row_of(line) for line in lines]
    rows = {(row.update, row.seed): row for row in found if row is not None}
    if begin:  # of the oldest exchange some rows may be cut off
        oldest = min((update for update, _ in rows), default=0)
        rows = {place: row for place, row in rows.items() if row.update > oldest}
    seeds = sorted({seed for _, seed in rows})
    shown = set(seeds[:MOST_MEMBERS])
    rows = {place: row for place, row in rows.items() if row.seed in shown}
    kept = newest(rows, MOST_COPIES)
    is_cut = begin > 0 or len(kept) < len(rows)
    return KnownLineage(kept, is_cut, found.count(None), len(seeds) - len(shown))


def row_of(line: bytes) -> LineageRow | None:
    """A row of a lineage; None if it is none."""
    row = named(parse(line) if len(line) <= LONGEST_LINE else None)
    update, seed, parent = (whole_or_none(row.get(key)) for key in ("update", "seed", "parent"))
    if update is None or seed is None or not isinstance(row.get("tuned"), dict):
        return None
    values = ((text(name), number(value)) for name, value in list(row["tuned"].items())[:MOST_TUNED])
    return LineageRow(update, seed, parent, number(row.get("score")), {name: x for name, x in values if x is not None})


def whole_or_none(value: Any) -> int | None:
    """A whole number that a browser can hold."""
    is_whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST_WHOLE
    return value if is_whole else None


def newest(rows: Rows, most: int) -> Rows:
    """The rows of the newest exchanges, with at most so many copies."""
    copies = Counter(row.update for row in rows.values() if row.parent not in (None, row.seed))
    count = 0
    for update in sorted({update for update, _ in rows}, reverse=True):
        count += copies[update]
        if count > most:
            return {place: row for place, row in rows.items() if row.update > update}
    return rows


def drawn(
    lineage: KnownLineage, members: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The lineage as the page draws it; None if there is none. `members` says how far each has come."""
    if not lineage.rows and not lineage.damaged:
        return None
    lives, own = [replace(life) for life in lineage.lives], lineage.own
    for member in members:
        if isinstance(member["seed"], int) and member["seed"] in own:
            life = lives[own[member["seed"]]]
            life.end = max(life.end, member["update"])
            life.score = life.score if member["return_mean"] is None else member["return_mean"]
    trained = {seed: score for seed, place in own.items() if (score := lives[place].score) is not None}
    returns = named(summary.get("eval_returns"))
    evaluated = {seed: x for seed in own if (x := number(returns.get(str(seed)))) is not None}
    best = best_member(own, evaluated, trained)
    names = list(dict.fromkeys(name for life in lives for name in life.tuned))[:MOST_TUNED]
    return {
        "seeds": sorted(own),
        "tuned": names,
        "lives": [told(life, lineage, names) for life in lives],
        "best": best,
        "descent": [] if best is None else line_of_descent(lives, best),
        "is_cut": lineage.is_cut,
        "damaged": lineage.damaged,
        "left_out": lineage.left_out,
    }


def told(life: Life, lineage: KnownLineage, names: Sequence[str]) -> dict[str, Any]:
    """A life as the page draws it, with the returns that its copy was decided by."""
    parent = None if life.parent is None else lineage.lives[life.parent].seed
    theirs = None if parent is None else lineage.rows.get((life.begin, parent))
    return {
        "seed": life.seed,
        "begin": life.begin,
        "end": life.end,
        "parent": life.parent,
        "is_replaced": life.is_replaced,
        "score": life.score,
        "score_before": lineage.rows[life.begin, life.seed].score,
        "score_of_parent": None if theirs is None else theirs.score,
        "tuned": [life.tuned.get(name) for name in names],
    }
