"""The answer of a search: plans in order, with what each would bring and what stands in its way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tessera.engines.simulated.prediction import Prediction
from tessera.graph.plan import Plan
from tessera.graph.policy import Policy
from tessera.planning.bounds import Bound
from tessera.planning.footprints import Footprint


@dataclass(frozen=True)
class Objective:
    """What the best plan has most of, or least."""

    name: str
    unit: str
    value: Callable[[Prediction], float]
    least: bool = False
    """Whether less is better."""

    def better(self, prediction: Prediction) -> float:
        """A number that grows the better a plan is."""
        return -self.value(prediction) if self.least else self.value(prediction)


THROUGHPUT = Objective("throughput", "steps/s", lambda prediction: prediction.steps_per_second)


def time_for(steps: int) -> Objective:
    """Seconds for so many steps, which a run of the same recipe has needed."""
    return Objective("time", "s", lambda prediction: steps / prediction.steps_per_second, least=True)


def _price_of_a_million(prediction: Prediction) -> float:
    return prediction.price_per_hour / 3600 * 1e6 / prediction.steps_per_second


COST = Objective("cost", "a million steps", _price_of_a_million, least=True)
"""What a million steps cost on the nodes that a plan uses."""


@dataclass(frozen=True)
class Candidate:
    """A plan that was simulated."""

    policy: Policy
    plan: Plan
    prediction: Prediction
    low: float
    """Steps per second, at the least: the lower end of the interval of what was simulated."""
    high: float
    at_most: float
    """Steps per second that the bound allows."""
    bound: Bound
    footprints: tuple[Footprint, ...]
    why: str = ""
    """Why it is not the best; empty for the best."""

    @property
    def steps_per_second(self) -> float:
        """As predicted."""
        return self.prediction.steps_per_second

    @property
    def lag(self) -> float:
        """Mean lag of what is learned from, in updates."""
        seen = [flow.lag_mean for flow in self.prediction.flows.values() if flow.lags]
        return max([float(self.plan.lag), *seen])

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "policy": self.policy.name,
            "steps_per_second": round(self.steps_per_second, 3),
            "low": round(self.low, 3),
            "high": round(self.high, 3),
            "at_most": round(self.at_most, 3),
            "bottleneck": self.prediction.bottleneck,
            "busy": {title: round(share, 4) for title, share in self.prediction.busy.items()},
            "lag": round(self.lag, 4),
            "memory": {f.title: f.process for f in self.footprints},
            "accelerator_memory": {f.title: f.device for f in self.footprints if f.device},
            "why": self.why,
        }


@dataclass(frozen=True)
class Refusal:
    """A colouring that has no plan here."""

    colouring: str
    reason: str
    processes: int = 1
    """Of the least number that it is refused for."""


@dataclass(frozen=True)
class Gain:
    """What one more of something would bring to the best plan."""

    what: str
    steps_per_second: float


@dataclass(frozen=True)
class Ranking:
    """Plans that learn the same, the best first."""

    candidates: tuple[Candidate, ...]
    other_recipes: tuple[Candidate, ...]
    """Plans that do not wait for everything, so that they learn something else."""
    refused: tuple[Refusal, ...]
    gains: tuple[Gain, ...]
    bounded: int
    """Colourings that were bounded."""
    objective: Objective = THROUGHPUT
    where: str = ""
    """The cluster that plans are for, in words; empty: this machine."""

    @property
    def best(self) -> Candidate:
        """The best plan of the same recipe."""
        return self.candidates[0]

    def to_json(self) -> dict[str, Any]:
        """Plain data, for `--format json`."""
        plan = self.best.plan
        return {
            "algorithm": plan.algorithm,
            "env": plan.env,
            "envs": plan.envs,
            "groups": plan.groups,
            "lag": plan.lag,
            "objective": self.objective.name,
            "where": self.where or "this machine",
            "bounded": self.bounded,
            "candidates": [self._with_value(c) for c in self.candidates],
            "other_recipes": [self._with_value(c) for c in self.other_recipes],
            "refused": [{"policy": r.colouring, "reason": r.reason} for r in self.refused],
            "one_more": {g.what: round(g.steps_per_second, 3) for g in self.gains},
        }

    def _with_value(self, candidate: Candidate) -> dict[str, Any]:
        return {**candidate.to_json(), "value": self.objective.value(candidate.prediction)}
