"""Curves of one metric of several runs, as one curve with a band."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tessera.evaluation.intervals import LEVEL, interquartile_mean

RESAMPLES = 200
"""Bootstrap resamples for each point of a band."""
DRAWN = 1 << 22
"""Numbers that are drawn at a time."""


class Line(NamedTuple):
    """A curve of one run, by increasing x; low and high differ from y where rows were joined."""

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray


def joined(lines: Sequence[Line], most: int) -> Line:
    """Curves of runs that differ in their seed: the interquartile mean, and its 95 % bootstrap interval over runs.

    Each run counts from its first point to its last one; the curve ends where fewer than half of them have come to.
    """
    lines = [each for each in lines if len(each.x)]
    if len(lines) <= 1:
        return lines[0] if lines else Line(*np.zeros((4, 0)))
    first, last = min(each.x[0] for each in lines), np.sort([each.x[-1] for each in lines])[(len(lines) - 1) // 2]
    longest = max(len(each.x) for each in lines)
    grid = np.linspace(first, max(first, last), min(most, longest))
    values = np.stack([np.interp(grid, each.x, each.y, left=np.nan, right=np.nan) for each in lines])  # [runs, points]
    middle, low, high = (np.full(len(grid), np.nan) for _ in range(3))
    present = np.isfinite(values)
    patterns, which = np.unique(present, axis=1, return_inverse=True)
    for k, pattern in enumerate(patterns.T):  # points at which the same runs count
        at = np.flatnonzero(which.reshape(-1) == k)
        if pattern.any():
            here = values[pattern][:, at].T
            middle[at] = interquartile_mean(here)
            low[at], high[at] = band(here)
    known = np.isfinite(middle)
    return Line(grid[known], middle[known], low[known], high[known])


def band(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each point of [points, runs] the bootstrap interval of the interquartile mean, resampling runs."""
    points, runs = values.shape
    drawn = np.random.default_rng(0).integers(runs, size=(RESAMPLES, runs))
    tail = 100 * (1 - LEVEL) / 2
    step = max(1, DRAWN // drawn.size)
    parts = [
        np.percentile(interquartile_mean(values[begin : begin + step][:, drawn]), [tail, 100 - tail], axis=-1)
        for begin in range(0, points, step)
    ]
    low, high = np.concatenate(parts, axis=-1)
    return low, high


def identity(config: dict[str, Any]) -> str:
    """What runs have in common that differ only in their seed."""
    return json.dumps({key: value for key, value in config.items() if key != "seed"}, sort_keys=True)
