"""The engine in virtual time.

Its replicas run the projected programs of the other engines, through the same ports, inboxes and disciplines. Slots
hold tokens, and a segment or an Op takes its cost in seconds of virtual time. So who waits for whom, what is dropped
and how old experience gets need no model of their own.

As in JAX, a segment whose results Python does not read runs beside the program that called it, once what it reads is
there: a host environment steps while the update is computed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tessera.algorithms.contract import Algorithm
from tessera.channels.link import Flow, LinkSpec
from tessera.channels.link_specs import LinkName, make_link_specs
from tessera.channels.port import HEADER, ReplicaPort
from tessera.channels.routes import Route, make_routes
from tessera.engines.ray_backend.capacity import is_all_gather, is_all_reduce
from tessera.engines.replica.replica import make_training, make_versions
from tessera.engines.replica.trace import TraceWriter
from tessera.engines.simulated.costs import NO_WORK, Costs, Work, is_counted, is_host, op_name, ops_in, work_kind
from tessera.engines.simulated.deployment import Deployment, on_one_machine
from tessera.engines.simulated.exchanges import CollectiveGroup, CollectiveTokens, Ring, SharedTokens
from tessera.engines.simulated.links import LinkEnd, SimulatedLink, message_bytes
from tessera.engines.simulated.members import LockStepMembers
from tessera.engines.simulated.memory import process_bytes, refuse_too_little_memory
from tessera.engines.simulated.prediction import CountedFlow, NodeUse, Prediction
from tessera.engines.simulated.simulated_node import SimulatedNode
from tessera.engines.simulated.tokens import NOTHING, TOKENS, Token, TokenShards
from tessera.engines.simulated.virtual_time import Cores, Processor, VirtualTime
from tessera.envs.base import Environment
from tessera.errors import TesseraError, unknown_name
from tessera.graph.disciplines import Newest, Shared, Sync
from tessera.graph.plan import Plan
from tessera.program.compile import merge_segments
from tessera.program.interpreter import drive
from tessera.program.keys import clock_at, count_of
from tessera.program.nodes import WIRING, Deferred, Every, Node, Op, Recv, Repeat, Segment, Send, Slots, effects
from tessera.program.overlap.scheduler import PlainScheduler
from tessera.program.project import project
from tessera.program.shapes import Shapes, message_shape, slot_shapes
from tessera.program.training_program import Training
from tessera.support.trees import bytes_of

ENDLESS = 1 << 30
"""Updates of a replica that runs until others are done."""
ALL_DONE = Deferred(())
"""The end of a program: its reports are read, so that everything has to be there."""


class SimulatedReplica:
    """One replica: its program, its port, and what it is doing."""

    def __init__(
        self, place: int, fragment: int, title: str, port: ReplicaPort, node: SimulatedNode, processor: Processor,
        groups: int, envs: int, learned: int, threads: int, stands_for: float, members: LockStepMembers | None,
        tracer: TraceWriter | None,
    ) -> None:  # fmt: skip
        self.place, self.fragment, self.title, self.port, self.processor = place, fragment, title, port, processor
        self.groups, self.envs, self.learned, self.threads, self.cores = groups, envs, learned, threads, node.cores
        self.stands_for, self.members, self.tracer = stands_for, members, tracer
        self.gradients = 1
        """How many the one that it applied last stands for."""
        self.slots: Slots = {}
        self.running: Iterator[Node] = iter(())
        self.stalled: Node | None = None
        """The node that it stands at until what it reads is there."""
        self.waits: Node | None = None
        """The exchange that it waits for."""
        self.waits_since = 0.0
        self.waited: defaultdict[str, float] = defaultdict(float)
        """Slot -> seconds that it waited to send or to receive it."""
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
    """Predicts how a plan runs, on one machine or on the nodes of a deployment."""

    name = "simulated"

    def __init__(
        self,
        plan: Plan,
        algorithm: Algorithm,
        env: Environment,
        costs: Costs,
        cores: int = 1,
        accelerators: int = 0,
        seed: int = 0,
        deployment: Deployment | None = None,
        trace: Path | None = None,
        shapes: Shapes | None = None,
    ) -> None:
        """`cores` and `accelerators` are of one machine, unless there is a deployment; with `trace`, parts of a
        timeline are written beside that file, for `merge_traces`; `shapes` are those of the program's slots, which many
        plans have in common."""
        self.deployment = deployment or on_one_machine(plan, cores, accelerators)
        self.plan, self.algorithm, self.costs = self.deployment.plan, algorithm, costs
        plan = self.plan
        self._random, self._generator = Random(seed).random, np.random.default_rng(seed)
        self._trace = trace
        self.time = VirtualTime()
        self._measured_from = 0.0
        self.nodes = [SimulatedNode(self.time, kind, costs.slowdown) for kind in self.deployment.kinds]
        training = make_training(plan, algorithm, env)
        self._lag = training.lag
        routes = make_routes(plan, algorithm)
        shapes = slot_shapes(training, plan) if shapes is None else shapes
        specs = make_link_specs(plan, routes, shapes, routes[0].shards if routes else None)
        self._empty = {slot for slot, shape in shapes.items() if not bytes_of(shape)}
        """Slots without values, such as the memory of a network that has none: nobody waits for them."""
        self._copies: dict[str, list[float]] = {}
        """Stream -> receptions of all replicas, and of those that are simulated, if each message is sent once."""
        self.routes = [_with_tokens(route, plan) for route in routes]
        self._groups: dict[int, CollectiveGroup] = {}
        """Channel -> peers on several nodes that all wait for all."""
        self._sizes: Counter[tuple[int, str]] = Counter()
        """Bytes of what a place sends of a slot, to all of its receivers if each has a link of its own."""
        self._shards = routes[0].shards if routes else None
        self.links = {name: self._link(name, spec, shapes) for name, spec in specs.items()}
        self._make_groups(specs)
        self.programs = [
            _with_costs(merge_segments(project(training.updates(), plan, i))) for i in range(len(plan.fragments))
        ]
        full = self.deployment.full
        self.memory = {
            f.title: process_bytes(full, i, self.programs[i], shapes, costs.process_memory)
            for i, f in enumerate(full.fragments)
        }
        refuse_too_little_memory(self.deployment, self.memory)
        _check_names(costs, training)
        self._effects: dict[int, tuple[set[str], set[str], tuple[int, int]]] = {}
        self._solo = plan.home("apply") if plan.solo else None
        """The fragment that applies gradients one by one."""
        self._applied = [0, 0]
        """Gradients that were applied one by one, and how many they stand for."""
        self.replicas = [self._replica(*place) for place in enumerate(plan.places)]
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
        self._begin_measuring()
        self._until(warmup + updates)
        return self._prediction(updates, self.time.now - self._measured_from)

    def _begin_measuring(self) -> None:
        self._measured_from, self._applied = self.time.now, [0, 0]
        for node in self.nodes:
            node.begin_measuring()
        for replica in self.replicas:
            replica.busy, replica.waits_since = 0.0, max(replica.waits_since, self.time.now)
            replica.waited.clear()
            replica.port.take_flows()
            _count_ages(replica.port)

    def _link(self, name: LinkName, spec: LinkSpec, shapes: Shapes) -> SimulatedLink:
        (k, lane), node_of = name, self.deployment.node_of
        channel, route = self.plan.channels[k], self.routes[k]
        several = len({node_of[place] for place in spec.places}) > 1
        first_writer, first_reader = self.plan.place(channel.source, 0), self.plan.place(channel.target, 0)
        p, source = spec.writer - first_writer, self.nodes[node_of[spec.writer]]
        by_node: dict[int, list[int]] = {}
        for place in spec.readers:
            by_node.setdefault(node_of[place], []).append(place)
        ends = {}
        for node, places in by_node.items():
            copies = [self.deployment.copies(route, p, place - first_reader) for place in places]
            sent, received = sum(sent for sent, _ in copies), copies[0][1]
            # where a message to the own node stands for others, most of those go to nodes like it
            remote = 1.0 if self.nodes[node] is not source else 1.0 - len(places) / sent
            ends[node] = LinkEnd(
                places=tuple(places),
                capacity=spec.capacity,
                costs=self.costs.remote_links if several else self.costs.links,
                cards=(source.card, self.nodes[node].card) if remote else None,
                copies_sent=sent,
                copies_received=received,
                remote=remote,
            )
            counts = self._copies.setdefault(channel.stream, [0.0, 0.0])
            for place, (_, received) in zip(places, copies, strict=True):
                counts[0] += received * self.deployment.stands_for[place]
                counts[1] += 1
        nbytes = message_bytes(spec.like)
        stands_for = self.deployment.stands_for[spec.writer]
        if stands_for > 1:
            carried = max(1, round(route.carried(lane) / stands_for))
            agents = (
                len(self.plan.fragments[channel.source].agents[p]) if self.plan.fragments[channel.source].agents else 0
            )
            nbytes = message_bytes(message_shape(self.plan, shapes, channel.slot, carried, self._shards, agents))
        self._sizes[spec.writer, channel.slot] += round(stands_for * nbytes + (stands_for - 1) * HEADER)
        return SimulatedLink(spec, nbytes, stands_for, ends, self.time, partial(self._wake, k), self._charge)

    def _make_groups(self, specs: dict[LinkName, LinkSpec]) -> None:
        """Find peers on several nodes that all wait for all: what they exchange goes round in a ring."""
        node_of, stands_for = self.deployment.node_of, self.deployment.stands_for
        for k, channel in enumerate(self.plan.channels):
            first = self.plan.place(channel.source, 0)
            places = range(first, first + self.plan.fragments[channel.source].replicas)
            several = len({node_of[place] for place in places}) > 1
            if not several or not (is_all_reduce(channel) or is_all_gather(channel)):
                continue
            held = Counter(node_of[place] for place in places)
            cards = tuple((self.nodes[node].card, count) for node, count in held.items())
            ring = Ring(sum(stands_for[place] for place in places), cards, is_all_gather(channel))
            nbytes = max(self.links[k, lane].nbytes for j, lane in specs if j == k)
            self._groups[k] = CollectiveGroup(
                self.routes[k], places, nbytes, ring, self.costs.remote_links, self.time, partial(self._wake, k),
                self._charge,
            )  # fmt: skip

    def _replica(self, place: int, where: tuple[int, int, str]) -> SimulatedReplica:
        i, r, title = where
        deployment, plan = self.deployment, self.plan
        placed, versions = plan.fragments[i], make_versions(plan, self.algorithm, i)
        node = self.nodes[deployment.node_of[place]]
        here = deployment.node_of[place]
        port = ReplicaPort(
            plan, self.routes, i, r, versions, lambda k, lane: self.links[k, lane].end_at(here),
            lambda channel: self._exchange(channel, place),
        )  # fmt: skip
        _count_ages(port)
        on_device = placed.platform != "cpu" and node.devices
        processor: Processor = node.devices[place % len(node.devices)] if on_device else node.cores
        operator = "act" if {"env", "act"} & set(placed.operators) else "grad"
        own, learned = (
            len(deployment.full.fragments[i].held(which)[deployment.numbers[place]]) for which in (operator, "grad")
        )
        stands_for = deployment.stands_for[place]
        lock_step = stands_for > 1 and all(
            isinstance(c.discipline, Sync) for c in plan.channels if i in (c.source, c.target)
        )
        ahead = max((c.lag for c in plan.channels if c.target == i), default=0)
        members = LockStepMembers(round(stands_for), ahead, self._generator) if lock_step else None
        tracer = TraceWriter(str(self._trace), place, title, lambda: self.time.now) if self._trace else None
        return SimulatedReplica(
            place, i, title, port, node, processor, len(placed.held(operator)[r]),
            own * plan.envs_per_group // placed.devices, learned * plan.envs_per_group // placed.devices,
            self._threads(i, r), stands_for, members, tracer,
        )  # fmt: skip

    def _threads(self, fragment: int, number: int) -> int:
        """Threads of a replica: those of its own cores; else on a cluster one, and on one machine its share."""
        placed = self.plan.fragments[fragment]
        if placed.cores or self.deployment.cluster is not None:
            return placed.cores[number] if placed.cores else 1
        own = sum(sum(each.cores) for each in self.plan.fragments)
        sharing = sum(each.replicas for each in self.plan.fragments if not each.cores)
        return max(1, (self.nodes[0].cores.count - own) // max(sharing, 1))

    def _exchange(self, channel: int, place: int) -> SharedTokens | CollectiveTokens | None:
        if isinstance(self.plan.channels[channel].discipline, Shared):
            return SharedTokens()
        group = self._groups.get(channel)
        return None if group is None else CollectiveTokens(group, place)

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
        behind = [r for r in self.replicas if self.plan.counted(r.fragment)]
        while behind:
            if behind[-1].updates >= updates:
                behind.pop()
            elif not self.time.step():
                waiting = ", ".join(r.title for r in self.replicas if r.waits)
                raise TesseraError(f"every fragment waits for another: {waiting}; this colouring deadlocks")

    def _wake(self, channel: int, place: int) -> None:
        """Have a replica look again if it waits for an exchange on a channel."""
        replica = self.replicas[place]
        if isinstance(replica.waits, Send | Recv) and replica.waits.channel == channel:
            self._count_waiting(replica)
            replica.waits = None
            self._advance(replica)

    def _count_waiting(self, replica: SimulatedReplica) -> None:
        """Count what it has waited since it began, or since measuring did."""
        node, begun = replica.waits, replica.waits_since
        if isinstance(node, Send | Recv):
            replica.waited[node.slot] += self.time.now - begun
            if replica.tracer is not None:
                replica.tracer.span(node, begun, waiting=True)
        replica.waits_since = self.time.now

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
                    if goes_on and replica.members is not None:
                        replica.members.meet()
                case Deferred(nodes=(Op() as op,)):
                    goes_on = self._call(replica, node, op)
                case Deferred(nodes=(Segment(),)) if replica.debt:
                    replica.stalled, goes_on = node, False  # messages come before the program that reads them
                    self._work(replica, NO_WORK)
                case Deferred(nodes=(Segment() as segment,)):
                    goes_on = self._run_segment(replica, segment)
                case _ if replica.debt:
                    goes_on = False  # then it looks again: what it waits for may have come meanwhile
                    self._work(replica, NO_WORK)
                case _:
                    replica.waits, replica.waits_since, goes_on = node, self.time.now, False

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
        return self._work(replica, work, replica.cores if is_host(op) else replica.processor, op)

    def _draw(self, replica: SimulatedReplica, node: Segment | Op) -> Work:
        """The work of one call, for those that it plays or learns from: of the slowest of those in lock-step, of all
        gradients that one stands for."""
        count = int(replica.slots["count"])
        envs = replica.learned if work_kind(node) == "learn" else replica.envs
        calls = self.costs.calls(node, envs, replica.threads) if replica.members is not None else None
        if calls is not None and replica.members is not None:
            return replica.members.draw(calls, count if is_counted(node) else 1)
        work = self.costs.draw(node, envs, count, replica.threads, self._random)
        gradients = self._gradients_of(replica, node)
        return work if gradients == 1 else work.times(gradients)

    def _gradients_of(self, replica: SimulatedReplica, node: Segment | Op) -> int:
        """How many gradients the one stands for that a node applies by itself."""
        if replica.fragment != self._solo or "gradients" not in self._known_effects(node)[0]:
            return 1
        token = replica.slots.get("gradients")
        return token.stands_for if isinstance(token, Token) else 1

    def _run_segment(self, replica: SimulatedReplica, segment: Segment) -> bool:
        """Begin a segment as soon as what it reads is there; the program waits for it only if Python reads of it."""
        work = self._draw(replica, segment)
        replica.debt += self.costs.per_node
        read = {token.job for s in self._known_effects(segment)[0] if isinstance(token := replica.slots.get(s), Token)}
        replica.jobs += 1
        job, needed = replica.jobs, [k for k in read if k in replica.unfinished]
        replica.unfinished[job] = []
        left = len(needed)

        def ready() -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                self._start(replica, work, replica.processor, lambda: self._finish(replica, job), segment)

        for earlier in needed:
            replica.unfinished[earlier].append(ready)
        self._write(replica, segment, job)
        if segment.fetched:
            replica.unfinished[job].append(lambda: self._advance(replica))
        if not needed:
            ready()
        return not segment.fetched

    def _known_effects(self, node: Segment | Op) -> tuple[set[str], set[str], tuple[int, int]]:
        """What a segment or an Op reads and writes, and how many gradients it applies (`_applies`)."""
        if id(node) not in self._effects:
            nodes = node.nodes if isinstance(node, Segment) else (node,)
            self._effects[id(node)] = (*effects(nodes), _applies(nodes))
        return self._effects[id(node)]

    def _finish(self, replica: SimulatedReplica, job: int) -> None:
        for waiting in replica.unfinished.pop(job):
            waiting()

    def _work(
        self, replica: SimulatedReplica, work: Work, processor: Processor | None = None, node: Op | None = None
    ) -> bool:
        """Have the program of a replica work, also on what it owes, and then go on; whether it can at once."""
        work = Work(work.seconds + replica.debt, work.cpu_seconds + replica.debt)
        replica.debt = 0.0
        if work.seconds:
            self._start(replica, work, processor or replica.cores, lambda: self._advance(replica), node)
        return not work.seconds

    def _start(
        self, replica: SimulatedReplica, work: Work, processor: Processor, then: Callable[[], None],
        node: Segment | Op | None,
    ) -> None:  # fmt: skip
        """Do work: on as many cores as it keeps busy, or asleep for a part of it."""
        begun = self.time.now
        if not replica.working:
            replica.working_since = self.time.now
        replica.working += 1

        def done() -> None:
            self._count_busy(replica)
            replica.working -= 1
            if replica.tracer is not None and node is not None:
                replica.tracer.span(node, begun)
            then()

        idle = max(work.seconds - work.cpu_seconds, 0.0) if isinstance(processor, Cores) else 0.0
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
        slots, count = replica.slots, int(replica.slots["count"])
        reads, writes, applies_each = self._known_effects(work)
        version = max((slots[s].version for s in reads if isinstance(slots.get(s), Token)), default=0)
        applied = applies_each[0] + applies_each[1] * count
        gradients = self._gradients_of(replica, work) if applied else 1
        version += applied * gradients
        if applied:
            replica.gradients = gradients
            self._applied = [self._applied[0] + applied, self._applied[1] + applied * gradients]
        for slot in writes:
            if slot == "update_clock":
                slots[slot] = np.asarray(clock_at(count_of(slots[slot]) + 1))
            elif slot != "acting_queue":
                made_by = 0 if slot in self._empty else job
                size = self._sizes[replica.place, slot]
                stands_for = round(replica.stands_for * replica.gradients)
                slots[slot] = Token(version, replica.groups, size, made_by, stands_for)

    def _prediction(self, updates: int, seconds: float) -> Prediction:
        if not seconds:
            raise TesseraError("all of this costs nothing, so nothing can be predicted: give the costs of some Ops")
        plan, full, fragments = self.plan, self.deployment.full, self.deployment.full.fragments
        busy = dict.fromkeys((f.title for f in fragments), 0.0)
        waited: dict[str, defaultdict[str, float]] = {f.title: defaultdict(float) for f in fragments}
        flows: dict[str, Flow] = {}
        ages: dict[str, Counter[int]] = {}
        for replica in self.replicas:
            self._count_busy(replica)
            self._count_waiting(replica)
            title = fragments[replica.fragment].title
            share = replica.stands_for / (fragments[replica.fragment].replicas * seconds)
            busy[title] += replica.busy * share
            for slot, waiting in replica.waited.items():
                waited[title][slot] += waiting * share
            for k, inbox in replica.port.inboxes.items():
                if isinstance(inbox.flow, CountedFlow) and inbox.flow.ages:
                    ages.setdefault(plan.channels[k].stream, Counter()).update(inbox.flow.ages)
            for stream, flow in replica.port.take_flows().items():
                flows.setdefault(stream, Flow()).merge(flow)
            if replica.tracer is not None:
                replica.tracer.close()
        gradients = self._applied[1] / self._applied[0] if plan.solo and self._applied[0] else 1.0
        for stream, flow in flows.items():
            true, simulated = self._copies.get(stream, (1.0, 1.0))
            flow.messages, flow.dropped = (round(n * true / simulated) for n in (flow.messages, flow.dropped))
            flow.fill *= true / simulated
            flow.bytes = round(flow.bytes * (gradients if stream == "params" else 1.0))
        updates_made = updates * gradients
        steps = float(full.envs_per_update) * self.algorithm.schedule.steps
        return Prediction(
            updates_made * steps / seconds,
            updates_made / seconds,
            busy,
            flows,
            seconds,
            {title: dict(sorted(slots.items(), key=lambda slot: -slot[1])) for title, slots in waited.items()},
            {stream: dict(sorted(counts.items())) for stream, counts in ages.items()},
            self._use_of_nodes(seconds),
            self.memory,
            sum(f.replicas for f in fragments),
            len(self.replicas),
        )

    def _use_of_nodes(self, seconds: float) -> tuple[NodeUse, ...]:
        """What each node does, if there are several; those that hold the same together."""
        held: list[Counter[str]] = [Counter() for _ in self.nodes]
        for replica in self.replicas:
            held[self.deployment.node_of[replica.place]][self.plan.fragments[replica.fragment].title] += 1
        found: dict[tuple[str, str], list[tuple[float, NodeUse]]] = {}
        for node, titles, alike in zip(self.nodes, held, self.deployment.nodes_alike, strict=True):
            holds = ", ".join(f"{count} × {title}" for title, count in titles.items())
            use = node.use(holds, alike, seconds, sum(count * self.memory[title] for title, count in titles.items()))
            found.setdefault((use.kind, holds), []).append((alike, use))
        return tuple(_together(uses) for uses in found.values()) if len(self.nodes) > 1 else ()


def _together(uses: list[tuple[float, NodeUse]]) -> NodeUse:
    """The mean of nodes that hold the same."""
    total = sum(alike for alike, _ in uses)

    def mean(name: str) -> float:
        return sum(alike * float(getattr(use, name)) for alike, use in uses) / total

    first = uses[0][1]
    return NodeUse(
        first.kind, first.holds, total, *map(mean, ("cores", "sent", "received", "card", "memory", "available"))
    )


def _count_ages(port: ReplicaPort) -> None:
    """Have a port keep how old what arrives is."""
    for inbox in port.inboxes.values():
        inbox.flow = CountedFlow()


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


def _applies(nodes: tuple[Node, ...]) -> tuple[int, int]:
    """Gradients that nodes apply: so many, and so many more for each turn of a loop without a number of its own."""
    once, each_turn = 0, 0
    for node in nodes:
        if isinstance(node, Repeat):
            inner = _applies(node.body)
            once += (node.count or 0) * inner[0]
            each_turn += inner[0] if node.count is None else node.count * inner[1]
        elif isinstance(node, Op):
            once += node.operator == "apply" and "gradients" in node.reads and node.writes == ("state",)
    return once, each_turn
