"""Makes the replicas of a plan in virtual time: what each holds, where it is, and what it exchanges with whom."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tessera.algorithms.contract import Algorithm
from tessera.channels.link_specs import LinkName
from tessera.channels.port import ReplicaPort
from tessera.channels.routes import Route
from tessera.engines.replica.replica import make_versions
from tessera.engines.replica.trace import TraceWriter
from tessera.engines.simulated.deployment import Deployment
from tessera.engines.simulated.exchanges import CollectiveGroup, CollectiveTokens, SharedTokens
from tessera.engines.simulated.links import SimulatedLink
from tessera.engines.simulated.members import LockStepMembers
from tessera.engines.simulated.replica import SimulatedReplica, count_ages
from tessera.engines.simulated.simulated_node import SimulatedNode
from tessera.envs.base import Environment, HostEnvironment
from tessera.graph.disciplines import Shared, Sync
from tessera.program.interfaces import Clock
from tessera.program.overlap.double_buffer import first_half


@dataclass(frozen=True, kw_only=True)
class ReplicaMaker:
    """What replicas are made from."""

    deployment: Deployment
    algorithm: Algorithm
    env: Environment
    nodes: list[SimulatedNode]
    routes: list[Route]
    links: dict[LinkName, SimulatedLink]
    groups: dict[int, CollectiveGroup]
    """Channel -> peers that exchange as one."""
    generator: np.random.Generator
    clock: Clock
    trace: Path | None

    def make(self, place: int) -> SimulatedReplica:
        """The replica at a place of the plan."""
        deployment, plan = self.deployment, self.deployment.plan
        i, r, title = plan.places[place]
        placed, versions = plan.fragments[i], make_versions(plan, self.algorithm, i)
        here = deployment.node_of[place]
        node = self.nodes[here]
        port = ReplicaPort(
            plan, self.routes, i, r, versions, lambda k, lane: self.links[k, lane].end_at(here),
            lambda channel: self._exchange(channel, place),
        )  # fmt: skip
        count_ages(port)
        on_device = placed.platform != "cpu" and node.devices
        device = node.devices[place % len(node.devices)] if on_device else None
        operator = "act" if {"env", "act"} & set(placed.operators) else "grad"
        own, learned = (
            len(deployment.full.fragments[i].held(which)[deployment.numbers[place]]) for which in (operator, "grad")
        )
        stands_for = deployment.stands_for[place]
        lock_step = stands_for > 1 and all(
            isinstance(c.discipline, Sync) for c in plan.channels if i in (c.source, c.target)
        )
        ahead = max((c.lag for c in plan.channels if c.target == i), default=0)
        served_alone = any(
            isinstance(c.discipline, Sync) and c.discipline.batching is not None for c in plan.channels if c.source == i
        )
        members = LockStepMembers(round(stands_for), ahead, self.generator) if lock_step else None
        tracer = TraceWriter(str(self.trace), place, title, self.clock) if self.trace else None
        return SimulatedReplica(
            place, i, title, port, node, device, len(placed.held(operator)[r]),
            own * plan.envs_per_group // placed.devices, learned * plan.envs_per_group // placed.devices,
            self._threads(i, r), stands_for, members, served_alone, tracer, self._first_half(place, i, r),
        )  # fmt: skip

    def _first_half(self, place: int, fragment: int, number: int) -> int:
        """Groups of the first slice of a replica whose environments are double-buffered; else 0."""
        deployment, placed = self.deployment, self.deployment.plan.fragments[fragment]
        if not isinstance(self.env, HostEnvironment) or "env" not in placed.operators:
            return 0
        pinned = placed.cores and deployment.cluster is None
        cores = placed.cores[number] if pinned else self.nodes[deployment.node_of[place]].cores.count
        own = len(deployment.full.fragments[fragment].held("env")[deployment.numbers[place]])
        # where a replica stands for others, it holds their groups too
        return first_half(self.env, own, cores) * len(placed.held("env")[number]) // own

    def _threads(self, fragment: int, number: int) -> int:
        """Threads of a replica: those of its own cores; else on a cluster one, and on one machine its share."""
        plan = self.deployment.plan
        placed = plan.fragments[fragment]
        if placed.cores or self.deployment.cluster is not None:
            return placed.cores[number] if placed.cores else 1
        own = sum(sum(each.cores) for each in plan.fragments)
        sharing = sum(each.replicas for each in plan.fragments if not each.cores)
        return max(1, (self.nodes[0].cores.count - own) // max(sharing, 1))

    def _exchange(self, channel: int, place: int) -> SharedTokens | CollectiveTokens | None:
        if isinstance(self.deployment.plan.channels[channel].discipline, Shared):
            return SharedTokens()
        group = self.groups.get(channel)
        return None if group is None else CollectiveTokens(group, place)
