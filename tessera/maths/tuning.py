"""Populations: who goes on from whom, and what changes then.

Either the worse members copy the better ones (population-based training, Jaderberg et al., 2017), or all go on from a
mean of the better half (an evolution strategy).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FACTORS = (0.8, 1.2)
"""A perturbed value is multiplied by one of these."""
DRAWN_ANEW = 0.25
"""How often a perturbed value is drawn anew instead."""


@dataclass(frozen=True)
class Range:
    """Where the values of a hyper-parameter lie: between two numbers, evenly, or evenly in their logarithm."""

    low: float
    high: float
    log: bool = False

    @classmethod
    def parse(cls, text: str) -> Range:
        """Read `0.9:0.999` or `log:1e-5:1e-2`; a ValueError says what is wrong with it."""
        if not isinstance(text, str):
            raise ValueError("write a text such as '0.9:0.999' or 'log:1e-5:1e-2'")  # as of a bad text
        kind, _, rest = text.partition(":")
        log = kind == "log"
        try:
            low, high = map(float, (rest if log else text).split(":"))
        except ValueError:
            raise ValueError("write low:high, or log:low:high") from None
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError("the first number must be below the second")
        if log and low <= 0:
            raise ValueError("a logarithm needs numbers above zero")
        return cls(low, high, log)

    def __str__(self) -> str:
        """As it was written."""
        return f"{'log:' * self.log}{self.low:g}:{self.high:g}"

    def draw(self, random: np.random.Generator) -> float:
        """A value from the range."""
        if self.log:
            return self._within(math.exp(random.uniform(math.log(self.low), math.log(self.high))))
        return self._within(random.uniform(self.low, self.high))

    def perturb(self, value: float, random: np.random.Generator) -> float:
        """A value near this one; now and then one from anywhere in the range."""
        anew, factor = random.random() < DRAWN_ANEW, FACTORS[int(random.integers(len(FACTORS)))]
        drawn = self.draw(random)
        return drawn if anew else self._within(value * factor)

    def _within(self, value: float) -> float:
        """The nearest number of the range, in single precision: what a checkpoint holds is the very same number."""
        return float(np.float32(min(max(value, self.low), self.high)))


def recombination_weights(scores: Sequence[float]) -> list[float]:
    """How much each member counts in a mean over the better half: by the logarithm of its place (Hansen, 2016).

    One that is broken, with a score of minus infinity, counts nothing; one whose score is unknown comes last.
    """
    sound = [k for k, score in enumerate(scores) if score != -math.inf]
    ranked = sorted(sound, key=lambda k: (math.isnan(scores[k]), -scores[k], k))[: max(1, len(scores) // 2)]
    raw = {k: math.log(len(ranked) + 0.5) - math.log(place) for place, k in enumerate(ranked, 1)}
    return [raw.get(k, 0.0) / sum(raw.values()) if raw else 0.0 for k in range(len(scores))]


def choose_parents(scores: Sequence[float], share: float, random: np.random.Generator) -> list[int]:
    """Whom each member goes on from: itself, unless it is among the worst `share` or broken.

    Those go on from one of the best `share`, drawn at random, if that one is better. A score is minus infinity for a
    member that is broken; one that is not a number is unknown, and that member neither copies nor is copied, unless
    nobody has a score that a broken one could go by.
    """
    parents = list(range(len(scores)))
    ranked = sorted((k for k in parents if not math.isnan(scores[k])), key=lambda k: (-scores[k], k))
    sound = [k for k in ranked if math.isfinite(scores[k])]
    cut = min(max(1, round(share * len(ranked))), len(ranked) // 2)
    unknown = [k for k in parents if math.isnan(scores[k])]
    best, worst = sound[:cut] or unknown, {*ranked[len(ranked) - cut :], *ranked[len(sound) :]}
    for k in sorted(worst):
        drawn = int(random.integers(max(len(best), 1)))
        if best and (scores[k] == -math.inf or scores[best[drawn]] > scores[k]):
            parents[k] = best[drawn]
    return parents
