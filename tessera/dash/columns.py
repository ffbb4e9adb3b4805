"""Numeric columns of many rows in bounded memory: neighbours are joined, their lowest and highest values kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tessera.dash.values import number

MOST_POINTS = 2048
"""Points that are kept of a file; twice as many before they are joined."""
MOST_COLUMNS = 400
"""Names of a file that are kept."""


class Points(NamedTuple):
    """A column: means, lowest and highest values of the rows that each point stands for, all [points]."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Columns:
    """Rows by column, in order. What a row lacks, or is no number, is nan."""

    def __init__(self) -> None:
        self.rows = np.zeros(0)
        """How many rows of the file each point stands for."""
        self._columns: dict[str, Points] = {}

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        return self.rows.nbytes + sum(part.nbytes for points in self._columns.values() for part in points)

    def extend(self, rows: Sequence[dict[str, Any]], weight: float = 1.0) -> None:
        """Add rows, each of which stands for `weight` rows of the file."""
        if not rows:
            return
        for name in {name: None for row in rows for name in row}:
            if name not in self._columns and len(self._columns) < MOST_COLUMNS:
                empty = np.full(len(self.rows), np.nan)
                self._columns[name] = Points(empty, empty, empty)
        for name, points in self._columns.items():
            values = numbers([row.get(name) for row in rows])
            self._columns[name] = Points(*(np.concatenate([part, values]) for part in points))
        self.rows = np.concatenate([self.rows, np.full(len(rows), weight)])
        if len(self.rows) > 2 * MOST_POINTS:
            self.rows, self._columns = self._joined(list(self._columns), MOST_POINTS)

    def points(self, names: Sequence[str], most: int) -> dict[str, Points]:
        """Columns in at most about so many points; nan where there are none."""
        return self._joined(names, most)[1]

    def _joined(self, names: Sequence[str], most: int) -> tuple[np.ndarray, dict[str, Points]]:
        """Neighbours joined so that each point stands for about as many rows of the file."""
        nothing = np.full(len(self.rows), np.nan)
        columns = {name: self._columns.get(name, Points(nothing, nothing, nothing)) for name in names}
        if len(self.rows) <= most:
            return self.rows, columns
        before = np.cumsum(self.rows) - self.rows
        piece = np.floor(before * most / self.rows.sum())
        begins = np.flatnonzero(np.diff(piece, prepend=-1.0))
        return np.add.reduceat(self.rows, begins), {
            name: Points(
                weighted_means(points.mean, self.rows, begins),
                np.fmin.reduceat(points.low, begins),
                np.fmax.reduceat(points.high, begins),
            )
            for name, points in columns.items()
        }


def weighted_means(values: np.ndarray, weights: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """Means of runs of values, without nan; nan where there is nothing else."""
    known = np.isfinite(values)
    total = np.add.reduceat(np.where(known, weights, 0.0), begins)
    with np.errstate(all="ignore"):
        return np.add.reduceat(np.where(known, values * weights, 0.0), begins) / total


def numbers(values: list[Any]) -> np.ndarray:
    """Values as an array, nan where there is no finite number."""
    try:
        found = np.array(values, np.float64) if not any(isinstance(x, str) for x in values) else None
    except (TypeError, ValueError, OverflowError):
        found = None
    if found is None or found.ndim != 1:
        cleaned = (number(x) for x in values)
        found = np.array([np.nan if x is None else x for x in cleaned])
    found[~np.isfinite(found)] = np.nan
    return found
