"""Point estimates that resist outliers, with their uncertainty: interquartile means and bootstrap intervals.

After Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (NeurIPS 2021): with a
handful of runs, report the interquartile mean with a percentile interval, resampling runs within each task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

RESAMPLES = 2000
LEVEL = 0.95
CHUNK = 1 << 22
"""Numbers that are drawn at a time."""

Statistic = Callable[[np.ndarray], np.ndarray]
"""From [..., n] to [...]."""


def mean(x: np.ndarray) -> np.ndarray:
    """Mean over the last axis."""
    return np.asarray(x, np.float64).mean(-1)


def interquartile_mean(x: np.ndarray) -> np.ndarray:
    """Mean over the last axis [..., n] without the lowest and the highest quarter, n // 4 numbers each."""
    ordered = np.sort(np.asarray(x, np.float64), -1)
    cut = ordered.shape[-1] // 4
    return ordered[..., cut : ordered.shape[-1] - cut].mean(-1)


def share_interval(count: int, total: int) -> tuple[float, float]:
    """95 % interval of a share, of which `count` in `total` were seen (Wilson, 1927): also where all or none were."""
    if not total:
        return float("nan"), float("nan")
    z = 1.959964
    centre = (count + z**2 / 2) / (total + z**2)
    half = z / (total + z**2) * math.sqrt(count * (total - count) / total + z**2 / 4)
    return max(0.0, centre - half), min(1.0, centre + half)


def bootstrap_interval(
    x: np.ndarray,
    statistic: Statistic = mean,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of a statistic of x [n]."""
    return stratified_interval([x], statistic, level, resamples, seed)


def stratified_interval(
    strata: Sequence[np.ndarray],
    statistic: Statistic = interquartile_mean,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of a statistic of all strata together; each stratum [n_i] is resampled alone.

    A stratum is a task and holds one score for each run, so every resample keeps the number of runs of each task.
    """
    parts = [np.asarray(part, np.float64) for part in strata]
    count = sum(map(len, parts))
    if not count:
        return float("nan"), float("nan")
    random = np.random.default_rng(seed)
    statistics: list[np.ndarray] = []
    step = max(1, CHUNK // count)
    for begin in range(0, resamples, step):
        rows = min(step, resamples - begin)
        drawn = [part[random.integers(len(part), size=(rows, len(part)))] for part in parts if len(part)]
        statistics.append(statistic(np.concatenate(drawn, -1)))
    tail = 100 * (1 - level) / 2
    low, high = np.percentile(np.concatenate(statistics), [tail, 100 - tail])
    return float(low), float(high)
