"""The engine in virtual time.

Its replicas run the projected programs of the other engines, through the same ports, inboxes and disciplines. Slots
hold tokens, and a segment or an Op takes its cost in seconds of virtual time. So who waits for whom, what is dropped
and how old experience gets need no model of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tessera.algorithms.contract import Algorithm
from tessera.channels.link import Flow
from tessera.channels.link_specs import make_link_specs
from tessera.channels.port import ReplicaPort
from tessera.channels.routes import Route, make_routes
from tessera.engines.replica.replica import make_training, make_versions
from tessera.engines.simulated.costs import Costs, op_name
from tessera.engines.simulated.links import SimulatedLink, message_bytes
from tessera.engines.simulated.tokens import NOTHING, TOKENS, Token, TokenShards
from tessera.engines.simulated.virtual_time import Cores, Device, Processor, VirtualTime
from tessera.envs.base import Environment
from tessera.errors import TesseraError, unknown_name
from tessera.graph.disciplines import Newest, Shared
from tessera.graph.plan import Plan
from tessera.program.compile import merge_segments
from tessera.program.interpreter import drive
from tessera.program.keys import clock_at, count_of
from tessera.program.nodes import Deferred, Every, Node, Op, Repeat, Segment, Slots, effects
from tessera.program.overlap.scheduler import PlainScheduler
from tessera.program.project import project
from tessera.program.shapes import slot_shapes
from tessera.program.training_program import Training

ENDLESS = 1 << 30
"""Updates of a replica that runs until others are done."""


@dataclass(frozen=True)
class Prediction:
    """What a plan would do, once it is under way."""

    steps_per_second: float
    updates_per_second: float
    busy: dict[str, float]
    """Share of the time in which the replicas of each fragment work, or wait for a core to, by its title."""
    flows: dict[str, Flow]
    """What went through each stream: messages, bytes, drops and lag."""

    @property
    def bottleneck(self) -> str:
        """The fragment that waits least."""
        return max(self.busy, key=lambda title: self.busy[title])


class SimulatedReplica:
    """One replica: its program, its port, and what it is doing."""

    def __init__(
        self, place: int, fragment: int, title: str, port: ReplicaPort, processor: Processor,
        groups: int, envs: int, threads: int,
    ) -> None:  # fmt: skip
        self.place, self.fragment, self.title, self.port, self.processor = place, fragment, title, port, processor
        self.groups, self.envs, self.threads = groups, envs, threads
        self.slots: Slots = {}
        self.running: Iterator[Node] = iter(())
        self.waits = False
        self.debt = 0.0
        """Seconds of work with messages, which it does before it goes on."""
        self.busy = 0.0
        self.working_since: float | None = None
        self.updates = 0


class SimulatedEngine:
    """Predicts how a plan runs on one machine."""

    name = "simulated"

    def __init__(
        self, plan: Plan, algorithm: Algorithm, env: Environment, costs: Costs, cores: int, accelerators: int = 0
    ) -> None:
        self.plan, self.algorithm, self.costs = plan, algorithm, costs
        self.time = VirtualTime()
        self._measured_from = 0.0
        self._cores = Cores(self.time, cores)
        self._devices = [Device(self.time) for _ in range(accelerators)]
        training = make_training(plan, algorithm, env)
        routes = make_routes(plan, algorithm)
        specs = make_link_specs(plan, routes, slot_shapes(training, plan), routes[0].shards if routes else None)
        self.links = {
            name: SimulatedLink(spec, costs.links, self.time, self._wake, self._charge) for name, spec in specs.items()
        }
        self._sizes: Counter[tuple[int, str]] = Counter()
        """Bytes of what a place sends of a slot, to all of its receivers if each has a link of its own."""
        for (k, _), spec in specs.items():
            self._sizes[spec.writer, plan.channels[k].slot] += message_bytes(spec)
        self.routes = [_with_tokens(route, plan) for route in routes]
        self.programs = [
            _with_costs(merge_segments(project(training.updates(), plan, i))) for i in range(len(plan.fragments))
        ]
        own = sum(sum(placed.cores) for placed in plan.fragments)
        sharing = sum(placed.replicas for placed in plan.fragments if not placed.cores)
        threads = max(1, (cores - own) // max(sharing, 1))
        _check_names(costs, training)
        self.replicas = [self._replica(*place, threads) for place in enumerate(plan.places)]
        for replica in self.replicas:
            self._begin(replica)

    def run(self, updates: int, warmup: int = 5) -> Prediction:
        """Let so many updates pass, after some that fill the queues, and say how it went; an engine runs once."""
        if self.time.now:
            raise TesseraError("a simulated engine runs once: make another one")
        for replica in self.replicas:
            counts = (warmup, updates) if self.plan.counted(replica.fragment) else (ENDLESS,)
            replica.running = _drive_updates(replica, self.programs[replica.fragment], counts)
        for replica in self.replicas:
            self._advance(replica)
        self._until(warmup)
        self._measured_from = self.time.now
        for replica in self.replicas:
            replica.busy = 0.0
            replica.port.take_flows()
        self._until(warmup + updates)
        return self._prediction(updates, self.time.now - self._measured_from)

    def _replica(self, place: int, where: tuple[int, int, str], threads: int) -> SimulatedReplica:
        i, r, title = where
        placed, versions = self.plan.fragments[i], make_versions(self.plan, self.algorithm, i)
        port = ReplicaPort(self.plan, self.routes, i, r, versions, lambda k, lane: self.links[k, lane], self._exchange)
        on_device = placed.platform != "cpu" and self._devices
        processor: Processor = self._devices[place % len(self._devices)] if on_device else self._cores
        plays = bool({"env", "act"} & set(placed.operators))
        groups = len(placed.held("act" if plays else "grad")[r])
        envs = groups * self.plan.envs_per_group // placed.devices
        return SimulatedReplica(
            place, i, title, port, processor, groups, envs, placed.cores[r] if placed.cores else threads
        )

    def _exchange(self, channel: int) -> SharedTokens | None:
        return SharedTokens() if isinstance(self.plan.channels[channel].discipline, Shared) else None

    def _begin(self, replica: SimulatedReplica) -> None:
        """Set clocks, and send what receivers begin with: params that they trail behind by, the first of a register."""
        replica.slots["update_clock"] = np.asarray(clock_at(0))
        for k, channel in enumerate(self.plan.channels):
            if channel.source == replica.fragment and channel.stream in ("params", "priorities"):
                for _ in range(1 if isinstance(channel.discipline, Newest) else channel.lag):
                    replica.port.publish(k, NOTHING)

    def _until(self, updates: int) -> None:
        """Let time pass until every replica that counts has made so many updates."""
        counted = [r for r in self.replicas if self.plan.counted(r.fragment)]
        while any(r.updates < updates for r in counted):
            if not self.time.step():
                waiting = ", ".join(r.title for r in self.replicas if r.waits)
                raise TesseraError(f"every fragment waits for another: {waiting}; this colouring deadlocks")

    def _wake(self, place: int) -> None:
        replica = self.replicas[place]
        if replica.waits:
            replica.waits = False
            self._advance(replica)

    def _charge(self, place: int, seconds: float) -> float:
        self.replicas[place].debt += seconds
        return self.replicas[place].debt

    def _advance(self, replica: SimulatedReplica) -> None:
        """Let a replica go on until it works or waits."""
        for node in replica.running:
            match node:
                case Deferred(nodes=(work,)):
                    assert isinstance(work, Segment | Op)
                    count = int(replica.slots["count"])
                    seconds = self.costs.seconds(work, replica.envs, count) + replica.debt
                    replica.debt = 0.0
                    self._write(replica, work, count)
                    if seconds:
                        self._work(replica, seconds)
                        return
                case Repeat():
                    continue
                case _ if replica.debt:
                    seconds, replica.debt = replica.debt, 0.0
                    self._work(replica, seconds)
                    return
                case _:
                    replica.waits = True
                    return

    def _work(self, replica: SimulatedReplica, seconds: float) -> None:
        replica.working_since = self.time.now

        def done() -> None:
            self._count_busy(replica)
            replica.working_since = None
            self._advance(replica)

        replica.processor.run(seconds, done, replica.threads)

    def _count_busy(self, replica: SimulatedReplica) -> None:
        """Count what it has worked since it began, or since measuring did."""
        if replica.working_since is not None:
            replica.busy += self.time.now - max(replica.working_since, self._measured_from)

    def _write(self, replica: SimulatedReplica, work: Segment | Op, count: int) -> None:
        """Put tokens into the slots that a segment or an Op writes."""
        nodes = work.nodes if isinstance(work, Segment) else (work,)
        slots = replica.slots
        reads, writes = effects(nodes)
        version = max((slots[s].version for s in reads if isinstance(slots.get(s), Token)), default=0)
        version += _applies(nodes, count)
        for slot in writes:
            if slot == "update_clock":
                slots[slot] = np.asarray(clock_at(count_of(slots[slot]) + 1))
            else:
                slots[slot] = Token(version, replica.groups, self._sizes[replica.place, slot])

    def _prediction(self, updates: int, seconds: float) -> Prediction:
        if not seconds:
            raise TesseraError("all of this costs nothing, so nothing can be predicted: give the costs of some Ops")
        busy: dict[str, list[float]] = {}
        flows: dict[str, Flow] = {}
        for replica in self.replicas:
            self._count_busy(replica)
            busy.setdefault(self.plan.fragments[replica.fragment].title, []).append(replica.busy / seconds)
            for stream, flow in replica.port.take_flows().items():
                flows.setdefault(stream, Flow()).merge(flow)
        steps = float(self.plan.envs_per_update) * self.algorithm.schedule.steps
        shares = {title: sum(shares) / len(shares) for title, shares in busy.items()}
        return Prediction(updates * steps / seconds, updates / seconds, shares, flows)


class SharedTokens:
    """Both ends of one memory that peers add to: nobody waits."""

    def __init__(self) -> None:
        self.flow = Flow()
        self._token = NOTHING

    def send(self, value: Token) -> bool:
        """Add."""
        self._token = value
        self.flow.messages += 1
        return True

    def receive(self) -> tuple[bool, Token]:
        """Read."""
        return True, self._token


def _drive_updates(replica: SimulatedReplica, program: tuple[Node, ...], counts: tuple[int, ...]) -> Iterator[Node]:
    """Run a program for so many updates, again and again; count those that are done."""
    for count in counts:
        begun, replica.slots["count"] = replica.updates, np.int64(count)
        for node in drive(program, replica.slots, replica.port, None, PlainScheduler()):
            replica.updates += isinstance(node, Repeat)
            yield node
        replica.updates = begun + count  # also where a segment made all of them


def _check_names(costs: Costs, training: Training) -> None:
    """Refuse costs of Ops that there are not."""
    known = {op_name(op) for op in _ops(training.updates())}
    for name in costs.ops:
        if name not in known:
            raise unknown_name("Op in the costs", name, sorted(known))


def _with_tokens(route: Route, plan: Plan) -> Route:
    """The route, for tokens."""
    server = plan.fragments[plan.home("apply")]
    shards: Any = TokenShards(server.replicas) if route.shards is not None else None
    return replace(route, values=TOKENS, shards=shards)


def _with_costs(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The program, with every segment and every Op left to the engine, and no values to stack."""
    out: list[Node] = []
    for node in nodes:
        match node:
            case Segment() | Op():
                out.append(Deferred((node,)))
            case Repeat():
                out.append(replace(node, body=_with_costs(node.body), stacks={}))
            case Every():
                out.append(replace(node, body=_with_costs(node.body)))
            case _:
                out.append(node)
    return tuple(out)


def _applies(nodes: tuple[Node, ...], count: int) -> int:
    """Gradients that nodes apply."""
    total = 0
    for node in nodes:
        if isinstance(node, Repeat):
            total += (count if node.count is None else node.count) * _applies(node.body, count)
        elif isinstance(node, Op):
            total += node.operator == "apply" and "gradients" in node.reads and node.writes == ("state",)
    return total


def _ops(nodes: tuple[Node, ...]) -> Iterator[Op]:
    for node in nodes:
        if isinstance(node, Op):
            yield node
        elif isinstance(node, Repeat):
            yield from _ops(node.body)
