"""The engine in virtual time.

Its replicas run the projected programs of the other engines, through the same ports, inboxes and disciplines. Slots
hold tokens, and a segment or an Op takes its cost in seconds of virtual time. So who waits for whom, what is dropped
and how old experience gets need no model of their own.

As in JAX, a segment whose results Python does not read runs beside the program that called it, once what it reads is
there: a host environment steps while the update is computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import Any

import numpy as np

from tessera.algorithms.contract import Algorithm
from tessera.channels.link import Flow
from tessera.channels.link_specs import make_link_specs
from tessera.channels.port import ReplicaPort
from tessera.channels.routes import Route, make_routes
from tessera.engines.replica.replica import make_training, make_versions
from tessera.engines.simulated.costs import NO_WORK, Costs, Work, is_host, op_name, ops_in, work_kind
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
from tessera.program.nodes import WIRING, Deferred, Every, Node, Op, Repeat, Segment, Send, Slots, effects
from tessera.program.overlap.scheduler import PlainScheduler
from tessera.program.project import project
from tessera.program.shapes import Shapes, slot_shapes
from tessera.program.training_program import Training
from tessera.support.trees import bytes_of

ENDLESS = 1 << 30
"""Updates of a replica that runs until others are done."""
ALL_DONE = Deferred(())
"""The end of a program: its reports are read, so that everything has to be there."""


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
        groups: int, envs: int, learned: int, threads: int,
    ) -> None:  # fmt: skip
        self.place, self.fragment, self.title, self.port, self.processor = place, fragment, title, port, processor
        self.groups, self.envs, self.learned, self.threads = groups, envs, learned, threads
        self.slots: Slots = {}
        self.running: Iterator[Node] = iter(())
        self.stalled: Node | None = None
        """The node that it stands at until what it reads is there."""
        self.waits = False
        self.debt = 0.0
        """Seconds of work with messages, which it does before it goes on."""
        self.busy = 0.0
        self.working = 0
        """Pieces of work under way: that of its program, and segments beside it."""
        self.working_since = 0.0
        self.updates = 0
        self.jobs = 0
        """Segments that were begun beside its program."""
        self.unfinished: dict[int, list[Callable[[], None]]] = {}
        """Those that are not done -> what waits for them."""


class SimulatedEngine:
    """Predicts how a plan runs on one machine."""

    name = "simulated"

    def __init__(
        self,
        plan: Plan,
        algorithm: Algorithm,
        env: Environment,
        costs: Costs,
        cores: int,
        accelerators: int = 0,
        seed: int = 0,
        shapes: Shapes | None = None,
    ) -> None:
        """`shapes` are those of the program's slots, which many plans have in common; None: they are derived here."""
        self.plan, self.algorithm, self.costs = plan, algorithm, costs
        self._random = Random(seed).random
        self.time = VirtualTime()
        self._measured_from = 0.0
        self._cores = Cores(self.time, cores)
        self._devices = [Device(self.time) for _ in range(accelerators)]
        training = make_training(plan, algorithm, env)
        self._lag = training.lag
        routes = make_routes(plan, algorithm)
        shapes = slot_shapes(training, plan) if shapes is None else shapes
        specs = make_link_specs(plan, routes, shapes, routes[0].shards if routes else None)
        self._empty = {slot for slot, shape in shapes.items() if not bytes_of(shape)}
        """Slots without values, such as the memory of a network that has none: nobody waits for them."""
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
            # nobody stops while others are still measured: they would have the cores for themselves
            counts = (warmup, updates, self.plan.lag + 1) if self.plan.counted(replica.fragment) else (ENDLESS,)
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
        envs, learned = (
            held * self.plan.envs_per_group // placed.devices for held in (groups, len(placed.held("grad")[r]))
        )
        return SimulatedReplica(
            place, i, title, port, processor, groups, envs, learned, placed.cores[r] if placed.cores else threads
        )

    def _exchange(self, channel: int) -> SharedTokens | None:
        return SharedTokens() if isinstance(self.plan.channels[channel].discipline, Shared) else None

    def _begin(self, replica: SimulatedReplica) -> None:
        """Set clocks, and send what receivers begin with: params that they trail behind by, the first of a register."""
        replica.slots["update_clock"] = np.asarray(clock_at(0))
        replica.slots["acting_queue"] = (NOTHING,) * self._lag
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
        goes_on = True
        while goes_on:
            node, replica.stalled = replica.stalled or next(replica.running, None), None
            match node:
                case None:
                    return
                case Repeat():
                    continue
                case Deferred(nodes=()):
                    goes_on = self._is_there(replica, node, tuple(replica.slots))
                case Deferred(nodes=(Send(slot=slot),)):
                    goes_on = self._is_there(replica, node, (slot,))
                case Deferred(nodes=(Op() as op,)):
                    goes_on = self._call(replica, node, op)
                case Deferred(nodes=(Segment() as segment,)):
                    goes_on = self._run_segment(replica, segment)
                case _ if replica.debt:  # then it looks again
                    goes_on = self._work(replica, NO_WORK)
                case _:
                    replica.waits, goes_on = True, False

    def _is_there(self, replica: SimulatedReplica, node: Node, slots: Iterable[str]) -> bool:
        """Whether what slots hold is made; if not, the replica stands at the node until it is."""
        for job in {token.job for s in slots if isinstance(token := replica.slots.get(s), Token)}:
            if job in replica.unfinished:
                replica.stalled = node
                replica.unfinished[job].append(lambda: self._advance(replica))
                return False
        return True

    def _call(self, replica: SimulatedReplica, node: Node, op: Op) -> bool:
        """Call an Op in Python: at once if it only passes values on, else when what it reads is there."""
        if op.kind == WIRING:
            self._pass_on(replica, op)
            return True
        if not self._is_there(replica, node, op.reads):
            return False
        work = self._draw(replica, op)
        self._write(replica, op, 0)
        return self._work(replica, work, self._cores if is_host(op) else replica.processor)

    def _run_segment(self, replica: SimulatedReplica, segment: Segment) -> bool:
        """Begin a segment as soon as what it reads is there; the program waits for it only if Python reads of it."""
        work = self._draw(replica, segment)
        replica.debt += self.costs.per_node
        read = {token.job for s in _effects(segment)[0] if isinstance(token := replica.slots.get(s), Token)}
        replica.jobs += 1
        job, needed = replica.jobs, [k for k in read if k in replica.unfinished]
        replica.unfinished[job] = []
        left = len(needed)

        def ready() -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                self._start(replica, work, replica.processor, lambda: self._finish(replica, job))

        for earlier in needed:
            replica.unfinished[earlier].append(ready)
        self._write(replica, segment, job)
        if segment.fetched:
            replica.unfinished[job].append(lambda: self._advance(replica))
        if not needed:
            ready()
        return not segment.fetched

    def _draw(self, replica: SimulatedReplica, node: Segment | Op) -> Work:
        """The work of one call: for the environments that it plays, or for those that it learns from."""
        envs = replica.learned if work_kind(node) == "learn" else replica.envs
        return self.costs.draw(node, envs, int(replica.slots["count"]), replica.threads, self._random)

    def _finish(self, replica: SimulatedReplica, job: int) -> None:
        for waiting in replica.unfinished.pop(job):
            waiting()

    def _work(self, replica: SimulatedReplica, work: Work, processor: Processor | None = None) -> bool:
        """Have the program of a replica work, also on what it owes, and then go on; whether it can at once."""
        work = Work(work.seconds + replica.debt, work.cpu_seconds + replica.debt)
        replica.debt = 0.0
        if work.seconds:
            self._start(replica, work, processor or self._cores, lambda: self._advance(replica))
        return not work.seconds

    def _start(self, replica: SimulatedReplica, work: Work, processor: Processor, then: Callable[[], None]) -> None:
        """Do work: on as many cores as it keeps busy, or asleep for a part of it."""
        if not replica.working:
            replica.working_since = self.time.now
        replica.working += 1

        def done() -> None:
            self._count_busy(replica)
            replica.working -= 1
            then()

        idle = max(work.seconds - work.cpu_seconds, 0.0) if processor is self._cores else 0.0
        if idle:
            processor.run(work.cpu_seconds, lambda: self.time.after(idle, done))
        else:
            processor.run(work.seconds, done, work.cpu_seconds / work.seconds if work.seconds else 1.0)

    def _count_busy(self, replica: SimulatedReplica) -> None:
        """Count what it has worked since it began, or since measuring did."""
        if replica.working:
            replica.busy += self.time.now - max(replica.working_since, self._measured_from)
            replica.working_since = self.time.now

    def _pass_on(self, replica: SimulatedReplica, op: Op) -> None:
        """Fill slots with what others hold; params that trail behind stand in a queue."""
        slots = replica.slots
        if "acting_queue" in op.reads:
            slots.update(zip(op.writes, op.function(*(slots[s] for s in op.reads)), strict=True))
        else:
            job = max((t.job for s in op.reads if isinstance(t := slots.get(s), Token)), default=0)
            self._write(replica, op, job)

    def _write(self, replica: SimulatedReplica, work: Segment | Op, job: int) -> None:
        """Put tokens into the slots that a segment or an Op writes."""
        slots, (reads, writes) = replica.slots, _effects(work)
        version = max((slots[s].version for s in reads if isinstance(slots.get(s), Token)), default=0)
        if "state" in writes:
            nodes = work.nodes if isinstance(work, Segment) else (work,)
            version += _applies(nodes, int(slots["count"]))
        for slot in writes:
            if slot == "update_clock":
                slots[slot] = np.asarray(clock_at(count_of(slots[slot]) + 1))
            elif slot != "acting_queue":
                made_by = 0 if slot in self._empty else job
                slots[slot] = Token(version, replica.groups, self._sizes[replica.place, slot], made_by)

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
        yield ALL_DONE
        replica.updates = begun + count  # also where a segment made all of them


def _check_names(costs: Costs, training: Training) -> None:
    """Refuse costs of Ops that there are not; one that hands params on is another where acting trails behind."""
    known = {op_name(op) for lag in (0, 1) for op in ops_in(replace(training, lag=lag).updates())}
    for name in costs.ops:
        if name not in known:
            raise unknown_name("Op in the costs", name, sorted(known))


def _with_tokens(route: Route, plan: Plan) -> Route:
    """The route, for tokens."""
    server = plan.fragments[plan.home("apply")]
    shards: Any = TokenShards(server.replicas) if route.shards is not None else None
    return replace(route, values=TOKENS, shards=shards)


def _with_costs(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The program, with every segment and every Op left to the engine, and no values to stack.

    The engine is also asked before anything is sent: it has to be there.
    """
    out: list[Node] = []
    for node in nodes:
        match node:
            case Segment() | Op():
                out.append(Deferred((node,)))
            case Send():
                out += [Deferred((node,)), node]
            case Repeat():
                out.append(replace(node, body=_with_costs(node.body), stacks={}))
            case Every():
                out.append(replace(node, body=_with_costs(node.body)))
            case _:
                out.append(node)
    return tuple(out)


@lru_cache(maxsize=4096)
def _effects(work: Segment | Op) -> tuple[set[str], set[str]]:
    """Slots that a segment or an Op reads, and slots that it writes."""
    return effects(work.nodes if isinstance(work, Segment) else (work,))


def _applies(nodes: tuple[Node, ...], count: int) -> int:
    """Gradients that nodes apply."""
    total = 0
    for node in nodes:
        if isinstance(node, Repeat):
            total += (count if node.count is None else node.count) * _applies(node.body, count)
        elif isinstance(node, Op):
            total += node.operator == "apply" and "gradients" in node.reads and node.writes == ("state",)
    return total
