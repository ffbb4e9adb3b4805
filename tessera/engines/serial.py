"""The serial engine: every fragment's replicas take turns in one thread. The reference for every other engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from tessera.algorithms.base import Algorithm, State
from tessera.engines.channels.memory import MemoryChannel
from tessera.engines.reports import Reports, by_update, merge_metrics, merge_tallies
from tessera.engines.routes import Route, concatenate
from tessera.envs.base import Environment, HostVector
from tessera.errors import RunFailed
from tessera.graph.plan import Plan
from tessera.program.compile import AXIS, CHUNK, compile_program, partition
from tessera.program.drive import drive
from tessera.program.initial import initial_slots
from tessera.program.nodes import REPORTS, SLOTS, Node
from tessera.program.project import project
from tessera.program.training import Tally, Training


@dataclass
class Replica:
    """One replica of a fragment: its share of the slots, and its ends of the channels."""

    fragment: int
    number: int
    slots: dict[str, Any]
    channels: list[MemoryChannel]

    def send(self, channel: int, value: Any) -> bool:
        """Send on a channel."""
        return self.channels[channel].send(self.number, value)

    def receive(self, channel: int) -> tuple[bool, Any]:
        """Receive from a channel."""
        return self.channels[channel].receive(self.number)


class SerialEngine:
    """Runs a plan. All state is in the replicas' slots and, where params lag, in the channels."""

    name = "serial"

    def __init__(self, plan: Plan, algorithm: Algorithm, env: Environment, seed: int, horizon: int) -> None:
        self.plan = plan
        cut = any(c.slot == "acting" for c in plan.channels)
        self.training = Training(algorithm, env, plan.groups, lag=0 if cut else plan.lag)
        self.meshes = [_mesh(f.devices) for f in plan.fragments]
        start, updates = self.training.start(), self.training.updates()
        fragments = range(len(plan.fragments))
        self.starts = [compile_program(project(start, plan, i), self.meshes[i]) for i in fragments]
        self.programs = [compile_program(project(updates, plan, i), self.meshes[i]) for i in fragments]
        self.channels = [MemoryChannel(Route(plan, c)) for c in plan.channels]
        self.replicas = [
            Replica(i, r, self._initial(i, r, seed, horizon * algorithm.schedule.applies), self.channels)
            for i in fragments
            for r in range(plan.fragments[i].replicas)
        ]
        for channel, route in zip(self.channels, plan.channels, strict=True):
            if route.lag:
                channel.preload([self._first("acting")] * route.lag)

    def start(self) -> Tally | None:
        """Reset the environments and fill the store; what was played meanwhile, if anything was."""
        self._run(self.starts)
        if not self.training.algorithm.schedule.warmup:
            return None
        count = self.training.algorithm.schedule.warmup
        return merge_tallies([by_update(v, count) for _, v in self._take_reports("report_env")])

    def advance(self, count: int) -> Reports:
        """Run `count` updates, CHUNK at the most, and report each."""
        if not 1 <= count <= CHUNK:
            raise ValueError(f"between 1 and {CHUNK} updates at a time, not {count}")
        for replica in self.replicas:
            replica.slots["count"] = np.int32(count)
        self._run(self.programs)
        tallies = [by_update(v, count) for _, v in self._take_reports("report_env")]
        gradients = self._take_reports("report_grad")
        weights = [len(self.plan.fragments[r.fragment].groups[r.number]) for r, _ in gradients]
        guards = [by_update(v, count) for _, v in self._take_reports("report_apply")]
        learned = merge_metrics([by_update(v, count) for _, v in gradients], weights)
        guard = jax.tree.map(lambda x: x[0], guards[0])
        return Reports(merge_tallies(tallies), learned.mean, learned.broken_at, guard)

    def state(self) -> State:
        """The learner's state."""
        return self._first("state")

    def snapshot(self) -> dict[str, Any]:
        """All persistent slots, whole: groups joined over replicas, copies once. Host environments are left out."""
        out: dict[str, Any] = {}
        for slot, known in SLOTS.items():
            values = [r.slots[slot] for r in self.replicas if slot in r.slots]
            if not known.persistent or not values or (slot in _HOST_STATE and self._on_host()):
                continue
            out[slot] = concatenate(values, known.axis) if known.layout == "groups" else values[0]
        for c, channel in zip(self.plan.channels, self.channels, strict=True):
            if c.lag:
                out["in_flight"] = tuple(channel.in_flight())
        return out

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Go on from a snapshot; host environments start new episodes."""
        if self._on_host():
            self._run([self._reset_only(i) for i in range(len(self.plan.fragments))])
        for replica in self.replicas:
            placed = self.plan.fragments[replica.fragment]
            mesh = self.meshes[replica.fragment]
            for slot in _owned(placed.operators, replica.slots, snapshot):
                value = snapshot[slot]
                if SLOTS[slot].layout == "groups":
                    mine = np.asarray(placed.groups[replica.number])
                    value = jax.tree.map(lambda x, mine=mine: x[mine[0] : mine[-1] + 1], value)
                where = NamedSharding(mesh, partition(slot)) if mesh else None
                # a copy of its own for each replica, since programs reuse the buffers that they are given
                replica.slots[slot] = jax.device_put(jax.tree.map(np.array, value), where)
        for c, channel in zip(self.plan.channels, self.channels, strict=True):
            if c.lag:
                channel.preload([jax.device_put(v) for v in snapshot["in_flight"]])

    def close(self) -> None:
        """Close host environments."""
        for replica in self.replicas:
            vector = replica.slots.get("env_state")
            if isinstance(vector, HostVector):
                vector.close()

    def _initial(self, fragment: int, replica: int, seed: int, horizon: int) -> dict[str, Any]:
        return initial_slots(self.training, self.plan, fragment, replica, seed, horizon, self.meshes[fragment])

    def _reset_only(self, fragment: int) -> tuple[Node, ...]:
        return compile_program(project(self.training.start()[:1], self.plan, fragment), self.meshes[fragment])

    def _first(self, slot: str) -> Any:
        return next(r.slots[slot] for r in self.replicas if slot in r.slots)

    def _on_host(self) -> bool:
        return any(isinstance(r.slots.get("env_state"), HostVector) for r in self.replicas)

    def _take_reports(self, slot: str) -> list[tuple[Replica, Any]]:
        assert slot in REPORTS
        return [(r, r.slots.pop(slot)) for r in self.replicas if slot in r.slots]

    def _run(self, programs: list[tuple[Node, ...]]) -> None:
        """Let replicas take turns until each has reached the end of its program."""
        running: dict[int, Iterator[None]] = {
            k: drive(programs[r.fragment], r.slots, r) for k, r in enumerate(self.replicas)
        }
        while running:
            before = (sum(c.moved for c in self.channels), len(running))
            for k in list(running):
                try:
                    next(running[k])
                except StopIteration:
                    del running[k]
            if running and before == (sum(c.moved for c in self.channels), len(running)):
                stuck = [
                    f"{self.plan.fragments[self.replicas[k].fragment].title}/{self.replicas[k].number}" for k in running
                ]
                raise RunFailed(f"every fragment waits for another: {', '.join(stuck)}; this colouring deadlocks")


_HOST_STATE = ("env_state", "env_clock", "timesteps", "episode")


def _owned(operators: tuple[str, ...], slots: dict[str, Any], snapshot: dict[str, Any]) -> list[str]:
    """Slots of a snapshot that belong to a replica, whether or not it has begun."""
    later = ("env_state", "timesteps", "episode") if "env" in operators else ()
    return [s for s in snapshot if s in slots or s in later]


def _mesh(devices: int) -> Mesh | None:
    return Mesh(np.asarray(jax.devices()[:devices]), (AXIS,)) if devices > 1 else None
