"""Ratings of players from the games between them (Elo), with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

RESAMPLES = 200
SCALE = 400 / np.log(10)
"""Elo's points for a factor of e in the odds."""
PRIOR = 0.5
"""Games that each pair is taken to have drawn, so that who never loses has a rating that is finite."""


@dataclass(frozen=True)
class Games:
    """Games between two players, for the first one: won, drawn and lost."""

    first: int
    second: int
    won: int
    drawn: int
    lost: int

    @property
    def count(self) -> int:
        """All of them."""
        return self.won + self.drawn + self.lost

    @property
    def score(self) -> float:
        """Share of points: 1 for a win, a half for a draw."""
        return (self.won + self.drawn / 2) / self.count

    def interval(self) -> tuple[float, float]:
        """Of the score, 95 %, by the spread of results; never narrower than one game says."""
        points = np.repeat([1.0, 0.5, 0.0], [self.won, self.drawn, self.lost])
        half = 1.96 * np.sqrt(max(points.var(), 1 / self.count) / self.count)
        return max(0.0, self.score - half), min(1.0, self.score + half)


def rated(players: int, results: Sequence[Games]) -> np.ndarray:
    """Elo's rating of each player, with a mean of 0: the likeliest, where odds are those of Bradley and Terry."""
    first = np.asarray([r.first for r in results])
    second = np.asarray([r.second for r in results])
    points = np.asarray([r.won + r.drawn / 2 + PRIOR / 2 for r in results])
    counts = np.asarray([r.count + PRIOR for r in results])

    def unlikely(strength: np.ndarray) -> tuple[float, np.ndarray]:
        margin = strength[first] - strength[second]
        value = float((counts * np.logaddexp(0, margin) - points * margin).sum() + 1e-9 * (strength**2).sum())
        slope = counts / (1 + np.exp(-margin)) - points
        gradient = np.bincount(first, slope, players) - np.bincount(second, slope, players)
        return value, gradient + 2e-9 * strength

    found = minimize(unlikely, np.zeros(players), jac=True, method="L-BFGS-B").x
    return SCALE * (found - found.mean())


def rating_intervals(players: int, results: Sequence[Games], seed: int = 0) -> np.ndarray:
    """[players, 2] where each rating is likely to be (95 %), by drawing the games again."""
    random = np.random.default_rng(seed)
    drawn = []
    for _ in range(RESAMPLES):
        again = [
            Games(
                r.first,
                r.second,
                *map(int, random.multinomial(r.count, np.asarray([r.won, r.drawn, r.lost]) / r.count)),
            )
            for r in results
        ]
        drawn.append(rated(players, again))
    return np.quantile(np.asarray(drawn), [0.025, 0.975], axis=0).T
