"""What a search is about: an algorithm in an environment, what it costs, and the machine that is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tessera.algorithms.contract import Algorithm
from tessera.engines.replica.replica import make_training
from tessera.engines.simulated.cluster import Cluster
from tessera.engines.simulated.costs import Costs
from tessera.engines.simulated.deployment import on_cluster, updates_until_all_are_heard
from tessera.engines.simulated.engine import SimulatedEngine
from tessera.engines.simulated.machine import Machine
from tessera.engines.simulated.prediction import Prediction
from tessera.envs.base import Environment
from tessera.graph.plan import Plan, make_plan
from tessera.graph.policy import Policy
from tessera.program.shapes import Shapes, slot_shapes
from tessera.support.trees import bytes_of

UNKNOWN = 1 << 62
"""Bytes of a node's memory that a cluster file does not name: all that could be asked for."""


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
    cluster: Cluster | None = None
    """The nodes that plans are for; None: the machine."""

    @classmethod
    def on_cluster(
        cls,
        planned: tuple[Algorithm, Environment, Plan],
        costs: Costs,
        machine: Machine,
        cluster: Cluster,
        lag: int | None = None,
    ) -> Workload:
        """Plans for the nodes of a cluster, with costs from a machine; all nodes together are one that has as much."""
        kinds = cluster.kinds
        memory = sum(kind.count * kind.memory for kind in kinds) if all(kind.memory for kind in kinds) else UNKNOWN
        # costs of a machine without accelerators say nothing of programs on these
        some = [kind for kind in kinds if kind.accelerators and machine.accelerators]
        whole = Machine(
            cores=sum(kind.count * kind.cores for kind in kinds),
            accelerators=sum(kind.count * kind.accelerators for kind in some),
            memory=memory,
            accelerator_memory=min((kind.accelerator_memory or UNKNOWN for kind in some), default=0),
        )
        return cls(*planned, costs, whole, lag, cluster)

    @property
    def fastest(self) -> float:
        """How much the fastest node does in a second, relative to the machine on which costs were measured."""
        kinds = () if self.cluster is None else self.cluster.kinds
        return max((max(kind.speed, kind.accelerator_speed) for kind in kinds), default=1.0)

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
            engine=None if self.cluster is None else "ray",
        )

    def least_price(self, processes: int) -> float:
        """Of an hour of the nodes that so many processes are on, at the least; 0 without a cluster.

        They are spread over all nodes; but those that need accelerators are only where these are.
        """
        if self.cluster is None:
            return 0.0
        spread = min(processes, self.cluster.size)
        packed = -(-processes // max(kind.cores for kind in self.cluster.kinds))
        return self.cluster.least_price(packed if self.machine.accelerators else spread)

    def exchange_seconds(self, slot: str, sends: bool, links: int, nbytes: int) -> float:
        """Work at one end of an exchange, at the least: on a cluster both ends may be on one node, or on two."""
        within = self.costs.exchange_seconds(slot, sends, links, nbytes)
        if self.cluster is None:
            return within
        remote = self.costs.remote_links
        return min(within, links * remote.cpu_per_message + nbytes * remote.cpu_per_byte)

    def transit_seconds(self, nbytes: int) -> float:
        """Time of a message between its ends, at the least."""
        within = self.costs.links.transit_seconds(nbytes)
        return within if self.cluster is None else min(within, self.costs.remote_links.transit_seconds(nbytes))

    def simulate(
        self, plan: Plan, updates: int, warmup: int, seed: int = 0, cluster: Cluster | None = None, **machine: Any
    ) -> Prediction:
        """Predict how a plan runs, there or on a machine or a cluster that differs from it."""
        cluster = cluster or self.cluster
        if cluster is not None:
            placed = on_cluster(plan, cluster)
            heard = updates_until_all_are_heard(placed)
            engine = SimulatedEngine(
                plan, self.algorithm, self.env, self.costs, seed=seed, deployment=placed, shapes=self.shapes
            )
            return engine.run(updates * heard, warmup * heard)
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
