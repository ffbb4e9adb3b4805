"""One replica of a fragment, under any engine: its programs, its slots and its ends of the channels."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh

from tessera.algorithms.contract import Algorithm
from tessera.channels.inboxes import PeerExchange, SharedExchange, Versions
from tessera.channels.link import Link
from tessera.channels.port import ReplicaPort
from tessera.channels.routes import Route
from tessera.channels.value_operations import ARRAYS
from tessera.engines.replica.reports import ReplicaReport, by_update, split_info
from tessera.engines.replica.trace import Recorder
from tessera.envs.base import Environment, HostEnvironment, HostVector, InfoTotals, merge_totals
from tessera.graph.disciplines import Newest
from tessera.graph.plan import Plan
from tessera.program.compile import compile_program
from tessera.program.exchange import no_priorities
from tessera.program.faults import FaultWatch
from tessera.program.initial import initial_slots
from tessera.program.interfaces import Clock, Port
from tessera.program.interpreter import drive
from tessera.program.keys import count_of, environment_seed
from tessera.program.nodes import REPORTS, Every, Node, Recv, Repeat, Send
from tessera.program.overlap.double_buffer import open_environments
from tessera.program.overlap.scheduler import OverlapScheduler, Scheduler
from tessera.program.peers import SharedParts, first_parts, succeed
from tessera.program.project import project
from tessera.program.sharding import make_mesh, shardings
from tessera.program.training_program import Training, acting, published
from tessera.support.machine import return_freed_memory
from tessera.support.streamed_arrays import StreamedArray, filled
from tessera.support.trees import is_key


def make_training(plan: Plan, algorithm: Algorithm, env: Environment) -> Training:
    """The one program, as this plan needs it."""
    gradients = plan.channel("gradients")
    return Training(
        algorithm,
        env,
        plan.batches,
        lag=0 if plan.channel("acting") else plan.lag,
        solo=plan.solo,
        threshold=gradients.threshold if gradients and gradients.codec else 0.0,
        exchange=plan.exchange,
        every=plan.every,
        carries=plan.carries,
        together=plan.together,
        batches_per_unroll=plan.groups // plan.batches,
    )


@dataclass(frozen=True)
class Programs:
    """What all replicas of one fragment run, compiled once."""

    reset: tuple[Node, ...]
    fill: tuple[Node, ...]
    start: tuple[Node, ...]
    """Both of the above, one after the other."""
    updates: tuple[Node, ...]
    mesh: Mesh | None


def make_programs(training: Training, plan: Plan, fragment: int, population: bool = False) -> Programs:
    """Project and compile, for one replica or for a population."""
    mesh = make_mesh(plan.fragments[fragment].devices, plan.fragments[fragment].model)

    def made(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return compile_program(project(nodes, plan, fragment), mesh, population=population)

    start = training.start()
    return Programs(made(start[:1]), made(start[1:]), made(start), made(training.updates()), mesh)


def horizon(plan: Plan, algorithm: Algorithm, updates: int) -> int:
    """Gradients that a run of so many updates applies."""
    return updates * algorithm.schedule.applies * plan.together


def updates_at(plan: Plan, algorithm: Algorithm, applies: int) -> int:
    """Updates that a run has made, by its clock; one that is not complete counts, so that no key is used twice."""
    return -(-applies // horizon(plan, algorithm, 1))


def make_versions(plan: Plan, algorithm: Algorithm, fragment: int) -> Versions:
    """How replicas of a fragment count the versions of params."""
    s = algorithm.schedule
    views = s.applies + s.draws * algorithm.absorbs
    known = bool({"act", "grad", "apply"} & set(plan.fragments[fragment].operators))
    return Versions(horizon(plan, algorithm, 1), views, known)


class Takeover(Port, Protocol):
    """A port that a successor uses until it stands where its predecessor stood."""

    @property
    def caught_up(self) -> bool:
        """Whether it does."""


class Replica:
    """A replica that can be started, driven and looked into."""

    def __init__(
        self,
        plan: Plan,
        training: Training,
        programs: Programs,
        routes: list[Route],
        fragment: int,
        number: int,
        seed: int,
        updates: int,
        link: Callable[[int, int], Link],
        peer_exchange: Callable[[int], PeerExchange | None],
        *,
        begun: tuple[int, int] = (0, 0),
    ) -> None:
        """`begun` says after which update it begins, and how many processes its place has had before."""
        self.plan, self.training, self.programs = plan, training, programs
        self.fragment, self.number = fragment, number
        s = training.algorithm.schedule
        ends = horizon(plan, training.algorithm, updates)
        own = (fragment, number, seed, ends, programs.mesh, environment_seed(seed, *begun))
        self.slots = initial_slots(training, plan, *own)
        self._seed = seed
        self._first_memory = None
        if isinstance(training.env, HostEnvironment) and "memory" in self.slots:
            self._first_memory = jax.tree.map(np.array, self.slots["memory"])
        self._reports: list[ReplicaReport] = []
        self._has_updated = False
        self._info: InfoTotals = {}
        self._faults = FaultWatch(training.env.name, s)
        self.tracer: Recorder | None = None
        self.scheduler: Scheduler = OverlapScheduler()
        self.clock: Clock = time.monotonic
        versions = make_versions(plan, training.algorithm, fragment)
        self.port = ReplicaPort(plan, routes, fragment, number, versions, link, peer_exchange)
        self.takeover: Takeover | None = None
        """Stands before the port while this replica catches up with a predecessor."""

    def record(self, recorder: Recorder) -> None:
        """Have all that it does from now on recorded."""
        self.tracer, self.clock = recorder, recorder.clock

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"{self.plan.fragments[self.fragment].title}/{self.number}"

    @property
    def on_host(self) -> bool:
        """Whether it holds environments that do not live in compiled programs."""
        return isinstance(self.slots.get("env_state"), HostVector)

    def start_new_episodes(self, update: int) -> None:
        """Where a run goes on after `update` updates: host environments that nobody has played yet, and no memory.

        A window of steps, a recurrent carry or a pending step of the old episodes would join them with the new ones.
        """
        env = self.training.env
        if not isinstance(env, HostEnvironment):
            return
        if self._first_memory is not None:
            self.put({"memory": self._first_memory})
        if self.on_host:
            self.slots["env_state"].close()
            ids = np.asarray(self.slots["ids"])
            self.slots["env_state"] = open_environments(env, ids, environment_seed(self._seed, update))

    def begin(self, under_way: dict[str, list[Any]] | None = None) -> None:
        """Send what receivers begin with: the params that they trail behind by, and the first of every register."""
        for k, channel in enumerate(self.plan.channels):
            if channel.source != self.fragment:
                continue
            if channel.stream == "params":
                value = acting(self._view()) if channel.slot == "acting" else self._view()
                given = (under_way or {}).get(channel.slot, [value] * channel.lag)
                for token in [value] if isinstance(channel.discipline, Newest) else given:
                    self.port.publish(k, token)
            elif channel.stream == "priorities":
                for token in (under_way or {}).get(channel.slot, [self.no_priorities()] * channel.lag):
                    self.port.publish(k, token)
            elif isinstance(exchange := self.port.exchanges.get(k), SharedExchange):
                first = partial(first_parts, self.training.algorithm, number=self.number, carries=self.plan.carries)
                contribution, parts = jax.device_get(jax.jit(first)(jax.device_get(self.slots["state"])))
                exchange.begin(parts)
                self.put({"contribution": contribution})

    def succeed(self, shared: SharedParts) -> None:
        """Begin with what peers share, in the place of a replica that died."""
        function = partial(succeed, self.training.algorithm, number=self.number, carries=self.plan.carries)
        state, contribution = jax.device_get(jax.jit(function)(jax.device_get(self.slots["state"]), shared))
        self.put({"state": state, "contribution": contribution})
        for slot in ("acting", "acting_queue"):
            if slot in self.slots:
                view = acting(published(state))
                self.put({slot: view if slot == "acting" else (view,) * self.training.lag})

    def put(self, slots: dict[str, Any]) -> None:
        """Set slots, in buffers of their own, since programs reuse what they are given.

        What is streamed goes into the buffers that are there for it.
        """
        mesh = self.programs.mesh
        for slot, value in slots.items():
            leaves, structure = jax.tree.flatten(value)
            places = jax.tree.leaves(shardings(mesh, slot, value)) if mesh else [None] * len(leaves)
            own = jax.tree.leaves(self.slots.get(slot))
            for k, leaf in enumerate(leaves):
                if isinstance(leaf, StreamedArray) and slot in self.slots:
                    leaves[k] = filled(own[k], leaf)
                else:
                    leaves[k] = jax.device_put(_copied(leaf), places[k])
            self.slots[slot] = jax.tree.unflatten(structure, leaves)

    def note_version(self) -> None:
        """Go on counting from the params that its slots hold: lag is measured from them, and messages carry it."""
        held = [self.slots[slot] for slot in ("state", "view", "acting") if slot in self.slots]
        if held:
            self.port.versions.newest = max(ARRAYS.version(value) for value in held)

    def in_flight(self) -> dict[str, tuple[Any, ...]]:
        """Messages that it has sent ahead and no receiver has taken, by slot: a part of its state."""
        found = {}
        for k, link in self.port.outgoing.items():
            channel = self.plan.channels[k]
            if self.plan.trails(channel):
                waiting = link.waiting(0)
                messages = [self._owned(link, link.peek(0, ahead).value) for ahead in range(waiting)]
                found[f"in_flight_{channel.slot}"] = tuple(messages)
        return found

    def _owned(self, link: Link, value: Any) -> Any:
        """A value that outlives its message."""
        return ARRAYS.own(value) if link.borrowed else value

    def run(self, program: tuple[Node, ...], count: int = 0, port: Port | None = None) -> Iterator[Node]:
        """Drive a program, through another port than its own if one is given; yields wherever it waits."""
        if self.takeover is not None and self.takeover.caught_up:
            self.takeover = None
        self.slots["count"] = np.int32(count)
        self.port.versions.filling = program is not self.programs.updates
        tracer = self.tracer if self.tracer is not None and self.tracer.active else None
        return drive(program, self.slots, port or self.takeover or self.port, tracer, self.scheduler, self.clock)

    def note_reports(self, count: int) -> None:
        """Keep the reports of a program that has ended, of `count` updates."""
        if not self._has_updated:  # all is compiled by now
            self._has_updated = True
            return_freed_memory()
        report = {slot: by_update(self.slots.pop(slot), count) for slot in REPORTS if slot in self.slots}
        fault = report.pop("report_act", None)
        if fault is not None:
            self._faults.check(fault, count_of(self.slots["act_clock"]))
        merge_totals(self._info, split_info(report))
        if self.on_host:
            merge_totals(self._info, self.slots["env_state"].take_info())
        if report:
            self._reports.append(report)

    def unsent(self) -> int:
        """Rows of experience that its memory keeps back."""
        algorithm = self.training.algorithm
        if type(algorithm).unsent is Algorithm.unsent or "memory" not in self.slots:
            return 0  # asked after every update, so it must cost nothing where nothing is kept back
        return int(np.sum(jax.device_get(algorithm.unsent(self.slots["memory"]))))

    def take_reports(self) -> list[ReplicaReport]:
        """Reports since this was last called."""
        reports, self._reports = self._reports, []
        return reports

    def take_info(self) -> InfoTotals:
        """Sums of the numbers in the `info` of its environments since this was last called."""
        info, self._info = self._info, {}
        return info

    def forget_reports(self) -> None:
        """Report nothing of what was played until now."""
        self.take_reports()
        self.take_info()
        if self.on_host:
            self.slots["env_state"].take_info()

    def close(self) -> None:
        """Close host environments."""
        vector = self.slots.get("env_state")
        if isinstance(vector, HostVector):
            vector.close()
        if self.tracer is not None:
            self.tracer.close()

    def _view(self) -> Any:
        """The view of its state: a copy, since programs reuse the buffers of the state."""
        return jax.tree.map(np.array, published(self.slots["state"]))

    def no_priorities(self) -> Any:
        """Priorities for no row at all, of all groups that it holds."""
        store = self.training.algorithm.store.split(self.training.groups)
        groups = len(self.plan.fragments[self.fragment].held("grad")[self.number])
        return no_priorities(groups, store.batch)  # type: ignore[attr-defined]


def _copied(x: Any) -> Any:
    return x.copy() if is_key(x) else np.array(x)


def wide_numbers() -> bool:
    """Whether numbers are 64 bits wide in this process, as they then must be in others."""
    return jax.dtypes.canonicalize_dtype(np.float64) == np.float64


def exchanges(nodes: tuple[Node, ...]) -> tuple[Counter[int], Counter[int]]:
    """Messages of each channel that one run of nodes sends and receives (one turn of the outermost loop)."""
    sends: Counter[int] = Counter()
    receives: Counter[int] = Counter()
    for node in nodes:
        if isinstance(node, Send):
            sends[node.channel] += 1
        elif isinstance(node, Recv):
            receives[node.channel] += 1
        elif isinstance(node, Repeat | Every):
            inner = exchanges(node.body)
            times = node.count if isinstance(node, Repeat) and node.count is not None else 1
            for total, part in zip((sends, receives), inner, strict=True):
                total.update({channel: n * times for channel, n in part.items()})
    return sends, receives
