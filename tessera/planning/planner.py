"""What a run asks of a planner: a prediction for its plan and, once it has drifted from that, a better plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tessera.engines.simulated.prediction import Prediction
from tessera.graph.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a plan does, measured while it runs; start-up, compilation, checkpoints and evaluations are left out."""

    steps_per_second: float
    updates_per_second: float
    busy: Mapping[str, float] = field(default_factory=dict)
    """Share of the time in which the replicas of each fragment do not wait for others, by its title; empty where one
    thread runs all of them."""
    waits: Mapping[str, float] = field(default_factory=dict)
    """Seconds in which replicas waited for each stream, in each second, summed over replicas."""
    other_cores: float | None = None
    """Cores that processes which do not belong to the run keep busy; None if that is not known."""


class Planner(Protocol):
    """Predicts plans of one algorithm in one environment, and finds better ones."""

    @property
    def profiled_at(self) -> float | None:
        """When its costs were measured, in seconds since the epoch; None if they were given."""

    def predict(self, plan: Plan) -> Prediction | None:
        """What the plan would do; None if nothing is known of it."""

    def better(self, plan: Plan, measured: Measured) -> Plan | None:
        """A plan that would be faster than `plan` by what was measured of it, and why (`Plan.reason`); None: it stays.

        Asked at a checkpoint, after the run has drifted from its prediction. The plan must learn the same: as many
        environments and groups, and the same lag.
        """
