"""Who goes on from whom in a population: lineage.jsonl, a row for each member at the beginning and at each exchange."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tessera.errors import TesseraError
from tessera.runs.population import Descent, Tuned
from tessera.runs.seeds import is_number
from tessera.support.files import read_text, write_text

FILE = "lineage.jsonl"
Row = dict[str, Any]
"""update, seed, parent (the seed whose state it has from here on; None at the beginning), score, tuned; where all go on
from a mean, its weight."""


class Lineage:
    """The rows so far. An exchange is in the folder, if there is one, before anything follows from it."""

    def __init__(self, folder: Path | None, seeds: Sequence[int]) -> None:
        self._path = None if folder is None else folder / FILE
        self.seeds = list(seeds)
        self.rows: list[Row] = []

    def resume(self, update: int) -> None:
        """Read what was written up to an update; its own exchange is still to come."""
        self.read()
        self.rows = [row for row in self.rows if row["update"] < update or row["update"] == 0]

    def read(self) -> None:
        """Read what was written: a row of each member, in order, again and again."""
        self.rows = [] if self._path is None else read_lineage(self._path.parent)
        count = len(self.seeds)
        for k, row in enumerate(self.rows):
            known = (
                row.get("parent") in (self.seeds if row["update"] else [None]) and row["seed"] == self.seeds[k % count]
            )
            known = known and all(map(is_number, [row.get("weight", 0), *row["tuned"].values()]))
            if not known or row["update"] != self.rows[k - k % count]["update"] or len(self.rows) % count:
                raise TesseraError(
                    f"{self._path}, line {k + 1}: not what a run of these seeds writes, so it is damaged"
                )

    def begin(self, tuned: Sequence[Tuned]) -> None:
        """Note what each member begins with."""
        self.rows = [
            {"update": 0, "seed": seed, "parent": None, "score": None, "tuned": mine}
            for seed, mine in zip(self.seeds, tuned, strict=True)
        ]

    def note(
        self, update: int, scores: Sequence[float], descents: Sequence[Descent], weights: Sequence[float] = ()
    ) -> None:
        """Note an exchange; `weights` are those of a mean that all go on from."""
        self.rows += [
            {
                "update": update,
                "seed": seed,
                "parent": self.seeds[descent.parent],
                "score": score if abs(score) < float("inf") else None,
                "tuned": descent.tuned,
                **({"weight": weights[k]} if weights else {}),
            }
            for k, (seed, score, descent) in enumerate(zip(self.seeds, scores, descents, strict=True))
        ]
        self.write()

    @property
    def newest(self) -> list[Row]:
        """The row of each member at the newest exchange."""
        return self.rows[-len(self.seeds) :]

    def write(self) -> None:
        """Replace the file."""
        if self._path is not None:
            write_text(self._path, "".join(json.dumps(row) + "\n" for row in self.rows))


def read_lineage(folder: Path) -> list[Row]:
    """The rows of a population's folder; empty if it has none."""
    path = folder / FILE
    if not path.exists():
        return []
    rows = []
    try:
        lines = read_text(path).splitlines()
    except UnicodeDecodeError:
        raise TesseraError(f"{path} is no text, so the file is damaged") from None
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            ok = isinstance(row["update"], int) and isinstance(row["seed"], int) and isinstance(row["tuned"], dict)
        except (ValueError, KeyError, TypeError, RecursionError):
            ok = False
        if not ok:
            raise TesseraError(f"{path}, line {number}: no row of a lineage, so the file is damaged")
        rows.append(row)
    return rows
