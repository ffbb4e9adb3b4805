"""Populations: members that train side by side, while the worse go on from copies of the better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tessera.algorithms.contract import Algorithm
from tessera.errors import TesseraError, unknown_name
from tessera.maths.tuning import Range, choose_parents
from tessera.support.fields import bounds_of, tunable_fields

EXCHANGES = 20
"""Exchanges of a run where the user gives no period."""
EXPLORE = ("perturb", "resample")
Tuned = dict[str, float]
"""Values of the hyper-parameters that are tuned, by the names of their fields."""


@dataclass(frozen=True)
class Descent:
    """What a member goes on from after an exchange."""

    parent: int
    """The number of the member whose state it has; its own if it goes on as it is."""
    tuned: Tuned


@dataclass(frozen=True)
class Population:
    """Population-based training: hyper-parameters are tuned while the members train.

    Each member begins with values of its own, drawn from `tune`. Every so many updates those with the lowest training
    returns go on from a copy of one with the highest, and with other values near its own.
    """

    size: int
    """Members. They differ in their seeds, from the run's seed on, and in their hyper-parameters."""
    tune: Mapping[str, str] = field(default_factory=dict)
    """Field -> range: {"learning_rate": "log:1e-5:1e-2", "gae_lambda": "0.8:1"}."""
    every: int | None = None
    """Updates from one exchange to the next; 0: there is none, which is a random search; None: 20 in a run."""
    explore: str = "perturb"
    """How whoever copies changes the values: perturb (0.8 or 1.2 times, and one in four drawn anew) or resample (all
    drawn anew)."""
    share: float = 0.2
    """Share of the members that copy at an exchange, and of those that are copied."""

    @cached_property
    def ranges(self) -> dict[str, Range]:
        """Where the values of each field lie."""
        return {name: Range.parse(text) for name, text in self.tune.items()}

    def check_size(self) -> None:
        """Refuse a population of one."""
        if self.size < 2:
            raise TesseraError(f"--population {self.size}: at least two members are needed")

    def check(self, algorithm: Algorithm) -> None:
        """Refuse what makes no sense for a bound algorithm."""
        self.check_size()
        if self.every is not None and self.every < 0:
            raise TesseraError(f"--pbt-every {self.every}: it cannot be below zero")
        if self.explore not in EXPLORE:
            raise unknown_name("--pbt-explore", self.explore, list(EXPLORE))
        if not 0 < self.share <= 0.5:
            raise TesseraError(f"share {self.share:g} of a population: between 0 and 0.5 can copy the others")
        known = tunable_fields(type(algorithm))
        for name, text in self.tune.items():
            if name not in known:
                raise unknown_name(f"{algorithm.name} can tune", name, known)
            try:
                given = Range.parse(text)
            except ValueError as error:
                raise TesseraError(f"--pbt {name}={text}: {error}") from None
            low, high = bounds_of(type(algorithm), name) or (given.low, given.high)
            if given.low < low or given.high > high:
                raise TesseraError(f"--pbt {name}={text}: its values must lie between {low:g} and {high:g}")
            if getattr(algorithm, name) is None:
                raise TesseraError(f"--pbt {name}: {algorithm.name} does not use it with these settings")

    def updates_between(self, updates: int) -> int:
        """Updates from one exchange to the next in a run of so many; 0 if there is none."""
        return max(1, updates // EXCHANGES) if self.every is None else self.every

    def first(self, seed: int, member: int) -> Tuned:
        """What a member begins with."""
        random = _random(seed, 0, member)
        return {name: each.draw(random) for name, each in self.ranges.items()}

    def exchange(self, seed: int, update: int, scores: Sequence[float], tuned: Sequence[Tuned]) -> list[Descent]:
        """What each member goes on from: it follows from the seed, the update, and how they have done."""
        parents = choose_parents(scores, self.share, _random(seed, update))
        return [
            Descent(parent, tuned[k] if parent == k else self._explored(tuned[parent], _random(seed, update, k)))
            for k, parent in enumerate(parents)
        ]

    def _explored(self, tuned: Tuned, random: np.random.Generator) -> Tuned:
        if self.explore == "resample":
            return {name: each.draw(random) for name, each in self.ranges.items()}
        return {name: each.perturb(tuned[name], random) for name, each in self.ranges.items()}

    def to_json(self, updates: int) -> dict[str, Any]:
        """What config.json says of it."""
        return {
            "tune": dict(self.tune),
            "every": self.updates_between(updates),
            "explore": self.explore,
            "share": self.share,
        }


@dataclass(frozen=True)
class Round:
    """The training of one member from one exchange to the next, where it has a process to itself."""

    described: dict[str, Any]
    """What config.json says of the population."""
    exchanged: int
    """The update of the exchange that it goes on from; 0 at the beginning."""


def _random(seed: int, *purpose: int) -> np.random.Generator:
    return np.random.default_rng([seed % 2**64, *purpose])
