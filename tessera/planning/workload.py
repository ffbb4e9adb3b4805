"""What a search is about: an algorithm in an environment, what it costs, and the machine that is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tessera.algorithms.contract import Algorithm
from tessera.engines.replica.replica import make_training
from tessera.engines.simulated.costs import Costs
from tessera.engines.simulated.engine import SimulatedEngine
from tessera.engines.simulated.machine import Machine
from tessera.engines.simulated.prediction import Prediction
from tessera.envs.base import Environment
from tessera.graph.plan import Plan, make_plan
from tessera.graph.policy import Policy
from tessera.program.shapes import Shapes, slot_shapes
from tessera.support.trees import bytes_of


@dataclass(frozen=True)
class Workload:
    """A run that is to be planned; all of its plans have the same environments, groups and lag."""

    algorithm: Algorithm
    """Bound to the environment."""
    env: Environment
    reference: Plan
    """Any plan of the run: it says how many environments and groups there are, and the lag."""
    costs: Costs
    machine: Machine
    lag: int | None = None
    """The lag that the user asked for; None: that of the kind of environment."""

    @property
    def steps_per_round(self) -> int:
        """Steps of one unroll of all environments."""
        return self.reference.envs * self.algorithm.schedule.steps

    @property
    def platform(self) -> str:
        """What programs are compiled for."""
        here = self.reference.fragments[0].platform
        return "cpu" if not self.machine.accelerators else "gpu" if here == "cpu" else here

    @cached_property
    def shapes(self) -> Shapes:
        """Shapes of the slots of the whole program, the same for all plans."""
        return slot_shapes(make_training(self.reference, self.algorithm, self.env), self.reference)

    @cached_property
    def slot_bytes(self) -> dict[str, int]:
        """Bytes of each slot, if one replica held all of it."""
        return {slot: bytes_of(shape) for slot, shape in self.shapes.items()}

    def plan(self, policy: Policy, reason: str = "") -> Plan:
        """The plan of a policy, or an error that says why there is none."""
        assert self.reference.origin is not None
        needs, cut = self.reference.origin[1], policy.cut("params")
        if self.lag is not None:
            policy = replace(policy, cuts={**policy.cuts, "params": replace(cut, lag=self.lag)})
        return make_plan(
            policy,
            needs,
            self.reference.envs,
            groups=self.reference.groups,
            platform=self.platform,
            available=max(1, self.machine.accelerators),
            reason=reason,
        )

    def simulate(self, plan: Plan, updates: int, warmup: int, seed: int = 0, **machine: Any) -> Prediction:
        """Predict how a plan runs, on this machine or on one that differs from it."""
        there = replace(self.machine, **machine)
        return SimulatedEngine(
            plan, self.algorithm, self.env, self.costs, there.cores, there.accelerators, seed, shapes=self.shapes
        ).run(updates, warmup)


def share_of(groups: int, replicas: int) -> int:
    """Groups of the replica that has most."""
    return -(-groups // replicas)


def distinct(homes: Sequence[int]) -> list[int]:
    """Fragments of several operators, each once."""
    return list(dict.fromkeys(homes))
