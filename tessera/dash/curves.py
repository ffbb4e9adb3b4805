"""Curves of metrics, ready to be drawn: thinned, and runs that differ only in their seed drawn as one with a band."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.dash.columns import Columns
from tessera.dash.facts import X_COLUMNS
from tessera.runs.joined_curves import Line

MOST_POINTS = 4000


def line(columns: Columns, metric: str, by: str, most: int) -> Line:
    """The curve of a metric, without rows that lack it."""
    found = columns.points([by, metric], most)
    x, y = found[by].mean, found[metric]
    known = np.isfinite(x) & np.isfinite(y.mean)
    order = np.argsort(x[known], kind="stable")
    return Line(*(part[known][order] for part in (x, y.mean, y.low, y.high)))


def curve(run: str, metric: str, line: Line, runs: int, by: str) -> dict[str, Any]:
    """A curve as plain data; without low and high where they are no different from it."""
    found: dict[str, Any] = {"run": run, "metric": metric, "x": as_x(line.x, by), "y": as_y(line.y), "runs": runs}
    if not (np.array_equal(line.low, line.y) and np.array_equal(line.high, line.y)):
        found |= {"low": as_y(line.low), "high": as_y(line.high)}
    return found


def as_x(values: np.ndarray, by: str) -> list[float]:
    """Values of x: whole numbers, but for seconds."""
    return np.round(values, 3 if by == "seconds" else 0).tolist()


def as_y(values: np.ndarray) -> list[float]:
    """Values of y, rounded to as many digits as can be seen."""
    with np.errstate(all="ignore"):
        digits = 6 - np.floor(np.log10(np.maximum(np.abs(values), 1e-300)))
        scale = 10.0 ** np.clip(digits, -290, 290)
        rounded = np.round(values * scale) / scale
    return np.where(np.isfinite(rounded), rounded, values).tolist()


def check_by(by: str) -> str:
    """The name of the x axis, if it is one."""
    return by if by in X_COLUMNS else X_COLUMNS[0]
