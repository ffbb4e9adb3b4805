"""What one replica of each fragment has to do for an update, read off the projected programs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from tessera.channels.routes import make_routes
from tessera.engines.replica.replica import make_training
from tessera.engines.simulated.costs import QUANTILES, Work, is_counted, is_host, node_name, work_kind
from tessera.errors import TesseraError
from tessera.graph.channel import Channel
from tessera.graph.plan import Plan
from tessera.planning.colourings import Colouring, Partition
from tessera.planning.workload import Workload
from tessera.program.compile import merge_segments
from tessera.program.nodes import WIRING, Every, Node, Op, Repeat, Segment, Send, effects
from tessera.program.project import project

SHORT = 60
"""Characters of a segment's name that are shown."""


class ProgramCall(NamedTuple):
    """A segment or an Op that a replica runs."""

    node: Segment | Op
    trips: float
    """How often, in an update."""
    kind: str
    """play, learn or both."""


@dataclass(frozen=True)
class FragmentProgram:
    """What the replicas of a fragment do for an update."""

    calls: tuple[ProgramCall, ...]
    sends: dict[str, float]
    """Slot -> how often it is sent."""
    slots: frozenset[str]
    """Slots that it reads or writes."""

    @cached_property
    def trips(self) -> float:
        """All calls of an update."""
        return sum(call.trips for call in self.calls)


class Load(NamedTuple):
    """Work for an update."""

    seconds: float = 0.0
    """How long it takes one replica alone."""
    core_seconds: float = 0.0
    device_seconds: float = 0.0
    """On an accelerator."""


class Demand(NamedTuple):
    """What one replica has to do for an update."""

    play: Load
    learn: Load
    both: Load
    """Playing and learning in one program."""


@dataclass(frozen=True)
class Template:
    """Programs and channels that colourings with the same cuts have in common."""

    programs: tuple[FragmentProgram, ...]
    channels: tuple[Channel, ...]


@dataclass
class Demands:
    """Finds out what fragments do, each kind of fragment once."""

    workload: Workload
    _templates: dict[tuple[Partition, bool, bool, bool, bool], Template] = field(default_factory=dict)
    _programs: dict[tuple[object, ...], FragmentProgram] = field(default_factory=dict)
    _works: dict[tuple[str, int, int], Work] = field(default_factory=dict)
    _demands: dict[tuple[int, int, int, int, bool], Demand] = field(default_factory=dict)

    def template(self, colouring: Colouring) -> Template:
        """The programs of a colouring; an error says why it has none.

        They depend on which operators are together, and on whether learners and servers have peers.
        """
        learners, servers = (self._replicas(colouring, operator) > 1 for operator in ("grad", "apply"))
        key = (colouring.partition, learners, servers, colouring.asynchronous, colouring.gather)
        if key not in self._templates:
            sizes = tuple(
                (min(r, 2) if {"grad", "apply"} & set(operators) else 1, 1)
                for operators, (r, _) in zip(colouring.partition, colouring.sizes, strict=True)
            )
            plan = self.workload.plan(colouring._replace(sizes=sizes).policy())
            if not plan.fragments[plan.home("apply")].sharded:  # those of shards take a moment, and refuse nothing
                make_routes(plan, self.workload.algorithm)
            programs = tuple(self._program(plan, i) for i in range(len(plan.fragments)))
            self._templates[key] = Template(programs, plan.channels)
        return self._templates[key]

    def demand(self, program: FragmentProgram, envs: int, learned: int, threads: int, halved: bool) -> Demand:
        """Of one replica that plays so many environments, learns from so many, and has so many threads; `halved`: one
        half of the environments steps while the other is acted for."""
        key = id(program), envs, learned, threads, halved
        if key not in self._demands:
            demand = self._sum_up(program, envs, learned, threads)
            self._demands[key] = self._in_halves(demand, program, envs, threads) if halved else demand
        return self._demands[key]

    def _in_halves(self, demand: Demand, program: FragmentProgram, envs: int, threads: int) -> Demand:
        """The demand if stepping hides all of acting, or acting all of stepping."""
        steps = [call for call in program.calls if call.kind == "play" and is_host(call.node)]
        stepping = sum(call.trips * self._mean(call.node, envs, threads).seconds for call in steps)
        longer = max(stepping, demand.play.seconds - stepping)
        return demand._replace(play=demand.play._replace(seconds=longer))

    def _sum_up(self, program: FragmentProgram, envs: int, learned: int, threads: int) -> Demand:
        loads = dict.fromkeys(("play", "learn", "both"), Load())
        on_cores = self.workload.platform == "cpu" or not self.workload.machine.accelerators
        for call in program.calls:
            size = learned if call.kind == "learn" else envs
            work, before = self._mean(call.node, size, threads).times(call.trips), loads[call.kind]
            if on_cores or is_host(call.node):
                more = Load(work.seconds, work.cpu_seconds)
            else:
                more = self._on_device(call, work, size)
            loads[call.kind] = Load(*map(sum, zip(before, more, strict=True)))
        return Demand(**loads)

    def _on_device(self, call: ProgramCall, work: Work, envs: int) -> Load:
        """Work of which a device does a part."""
        device = min(work.seconds, call.trips * self.workload.costs.device_seconds(call.node, envs, 1))
        share = 1 - device / work.seconds if work.seconds else 0.0
        return Load(work.seconds, share * work.cpu_seconds, device)

    def _mean(self, node: Segment | Op, envs: int, threads: int) -> Work:
        """The mean work of one call, or of one update of a program that makes many."""
        key = f"{type(node).__name__} {node_name(node)}", envs, threads
        if key not in self._works:
            costs, quantile = self.workload.costs, itertools.count()
            if costs.timings and not costs.ops and node_name(node) not in costs.timings:
                raise TesseraError(
                    f"the profile was cut short, and does not say what `{_short(node_name(node))}` costs: take it "
                    "again with `tessera profile`, when the machine has less to do"
                )

            def in_turn() -> float:
                return (next(quantile) % QUANTILES + 0.5) / QUANTILES

            counted = is_counted(node)
            calls = 1 if counted or node_name(node) not in costs.timings else QUANTILES
            drawn = [costs.draw(node, envs, QUANTILES, threads, in_turn) for _ in range(calls)]
            total = Work(sum(w.seconds for w in drawn), sum(w.cpu_seconds for w in drawn))
            self._works[key] = total.times(1 / (QUANTILES if counted else calls))
        return self._works[key]

    def _program(self, plan: Plan, index: int) -> FragmentProgram:
        """The program of a fragment, found once for all plans in which it sends and receives the same."""
        cut = tuple((c.slot, c.source == index, c.target == index) for c in plan.channels)
        own = frozenset(c for c in cut if c[1] or c[2])
        key = plan.fragments[index].operators, own, plan.solo, plan.channel("acting") is None
        if key not in self._programs:
            project(self._start, plan, index)
            nodes = merge_segments(project(self._updates(plan), plan, index))
            self._programs[key] = _described(nodes)
        return self._programs[key]

    @cached_property
    def _start(self) -> tuple[Node, ...]:
        return make_training(self.workload.reference, self.workload.algorithm, self.workload.env).start()

    def _updates(self, plan: Plan) -> tuple[Node, ...]:
        return make_training(plan, self.workload.algorithm, self.workload.env).updates()

    @staticmethod
    def _replicas(colouring: Colouring, operator: str) -> int:
        pairs = zip(colouring.partition, colouring.sizes, strict=True)
        return next(replicas for operators, (replicas, _) in pairs if operator in operators)


def _short(name: str) -> str:
    return name if len(name) <= SHORT else f"{name[:SHORT]}…"


def _described(nodes: tuple[Node, ...]) -> FragmentProgram:
    calls: list[ProgramCall] = []
    sends: dict[str, float] = {}
    for node, trips in _leaves(nodes):
        match node:
            case Send(slot=slot):
                sends[slot] = sends.get(slot, 0.0) + trips
            case Segment():
                calls.append(ProgramCall(node, trips, work_kind(node)))
            case Op(kind=kind) if kind != WIRING:
                calls.append(ProgramCall(node, trips, work_kind(node)))
    return FragmentProgram(tuple(calls), sends, frozenset(set.union(*effects(nodes))))


def _leaves(nodes: tuple[Node, ...], trips: float = 1.0) -> Iterator[tuple[Node, float]]:
    """What an update runs, each with how often."""
    for node in nodes:
        match node:
            case Repeat(count=count, body=body):
                yield from _leaves(body, trips * (count or 1))
            case Every(count=count, body=body):
                yield from _leaves(body, trips / count)
            case _:
                yield node, trips
