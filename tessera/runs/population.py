"""Populations: members that train side by side, while the worse go on from copies of the better."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np

from tessera.algorithms.contract import Algorithm, FirstParams
from tessera.errors import TesseraError, unknown_name
from tessera.maths.tuning import Range, choose_parents, recombination_weights
from tessera.program.initial import initial_state
from tessera.program.keys import root_key
from tessera.runs.checkpoint import flatten, unflatten
from tessera.runs.recombination import near
from tessera.support.fields import bounds_of, tunable_fields

EXCHANGES = 20
"""Parts of a run with an exchange between them, where the user gives no period."""
MOST_CHECKED = 256
"""Combinations of the ends of ranges that are checked."""
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
    """Updates from one exchange to the next; 0: there is none, which is a random search; None: a twentieth of
    the run."""
    explore: str = "perturb"
    """How whoever copies changes the values: perturb (0.8 or 1.2 times, and one in four drawn anew) or resample (all
    drawn anew)."""
    share: float = 0.2
    """Share of the members that copy at an exchange, and of those that are copied."""
    sigma: float = 0.0
    """If not 0, an evolution strategy takes the place of copies: all members go on from a weighted mean of the better
    half's params, each with noise of this deviation; neighbours have opposite noise."""

    @cached_property
    def ranges(self) -> dict[str, Range]:
        """Where the values of each field lie."""
        return {name: Range.parse(text) for name, text in self.tune.items()}

    def check_alone(self, seeds: int | None, patience: int | None) -> None:
        """Refuse a population of one, and options that make no sense beside any population."""
        if seeds is not None:
            raise TesseraError("--seeds and --population: give one of them, since members have seeds of their own")
        if patience is not None:
            raise TesseraError("--patience would end a member that others may copy: leave it out of a population")
        if self.size < 2:
            raise TesseraError(f"--population {self.size}: at least two members are needed")

    def check(self, algorithm: Algorithm) -> None:
        """Refuse what makes no sense for a bound algorithm."""
        if not 0 <= self.sigma < math.inf:
            raise TesseraError(f"--es-sigma {self.sigma:g}: it cannot be below zero, nor infinite")
        if self.sigma and (self.tune or self.every == 0):
            other = "what --pbt, or the system, tunes" if self.tune else "--pbt-every 0"
            raise TesseraError(f"--es-sigma averages the members' params at every exchange: leave out {other}")
        if self.every is not None and self.every < 0:
            raise TesseraError(f"--pbt-every {self.every}: it cannot be below zero")
        if self.explore not in EXPLORE:
            raise unknown_name("--pbt-explore", self.explore, list(EXPLORE))
        if not 0 < self.share <= 0.5:
            raise TesseraError(f"share {self.share:g} of a population: between 0 and 0.5 can copy the others")
        known = tunable_fields(type(algorithm))
        for name, text in self.tune.items():
            if name not in known:
                raise unknown_name(f"field of {algorithm.name} to tune", name, known)
            try:
                given = Range.parse(text)
            except ValueError as error:
                raise TesseraError(f"--pbt {name}={text}: {error}") from None
            low, high = bounds_of(type(algorithm), name) or (given.low, given.high)
            if given.low < low or given.high > high:
                raise TesseraError(f"--pbt {name}={text}: its values must lie between {low:g} and {high:g}")
            if getattr(algorithm, name) is None:
                raise TesseraError(f"--pbt {name}: {algorithm.name} does not use it with these settings")
        self._check_together(algorithm)

    def _check_together(self, algorithm: Algorithm) -> None:
        """Refuse ranges whose ends the algorithm refuses beside each other."""
        ends = [(each.low, each.high) for each in self.ranges.values()]
        for values in itertools.islice(itertools.product(*ends), MOST_CHECKED):
            given: dict[str, Any] = dict(zip(self.ranges, values, strict=True))
            try:
                dataclasses.replace(algorithm, **given, tuned=tuple(given)).check()
            except TesseraError as error:
                shown = ", ".join(f"{name}={value:g}" for name, value in given.items())
                raise TesseraError(f"--pbt may come to {shown}, where {error}") from None

    def updates_between(self, updates: int) -> int:
        """Updates from one exchange to the next in a run of so many; 0 if there is none."""
        return max(1, updates // EXCHANGES) if self.every is None else self.every

    def first(self, seed: int, member: int) -> Tuned:
        """What a member begins with."""
        random = _random(seed, 0, member)
        return {name: each.draw(random) for name, each in self.ranges.items()}

    def exchange(self, seed: int, update: int, scores: Sequence[float], tuned: Sequence[Tuned]) -> list[Descent]:
        """What each member goes on from: it follows from the seed, the update, and how they have done."""
        if self.sigma:
            weights = recombination_weights(scores)
            best = int(np.argmax(weights))
            lost = [score == -math.inf and any(weights) for score in scores]
            return [Descent(best if is_lost else k, {}) for k, is_lost in enumerate(lost)]
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
            **({"sigma": self.sigma} if self.sigma else {}),
        }


@dataclass(frozen=True)
class Round:
    """The training of one member from one exchange to the next, where it has a process to itself."""

    described: dict[str, Any]
    """What config.json says of the population."""
    exchanged: int
    """The update of the exchange that it goes on from; 0 at the beginning."""
    seed: int = 0
    """That of the whole population, which is the first member's."""

    @classmethod
    def whole(cls, population: Population, algorithm: Algorithm, updates: int) -> Round:
        """That of a population whose members this process starts, for a bound algorithm that it is checked for."""
        population.check(algorithm)
        return cls(population.to_json(updates), 0)

    def first_params(self, algorithm: Algorithm, given: FirstParams | None, seed: int) -> FirstParams | None:
        """What a member begins with; under an evolution strategy, params near those of the first member."""
        sigma = self.described.get("sigma")
        if not sigma:
            return given
        params, statistics = (None, None) if given is None else given.trees
        if params is None:
            params = jax.jit(lambda root: initial_state(algorithm, root, 1).params)(root_key(self.seed))
        like = {"state": {"params": params}}
        moved = near(flatten(like), sigma, self.seed, 0, seed - self.seed)
        return FirstParams(unflatten(like, moved, "the first member")["state"]["params"], statistics)


def _random(seed: int, *purpose: int) -> np.random.Generator:
    return np.random.default_rng([seed % 2**64, *purpose])
