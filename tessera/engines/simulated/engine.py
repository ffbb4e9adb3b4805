"""The engine in virtual time.

Its replicas run the projected programs of the other engines, through the same ports, inboxes and disciplines. Slots
hold tokens, and a segment or an Op takes its cost in seconds of virtual time. So who waits for whom, what is dropped
and how old experience gets need no model of their own.

As in JAX, a segment whose results Python does not read runs beside the program that called it, once what it reads is
there, and on processors once all that were called before it are done: a device runs its programs in order. So do the
steps of double-buffered environments, one after the other, in a thread of their own (`overlap`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from random import Random

import numpy as np

from tessera.algorithms.contract import Algorithm
from tessera.channels.link_specs import make_link_specs
from tessera.channels.routes import make_routes
from tessera.channels.shared_memory import SPIN_SECONDS
from tessera.engines.replica.replica import make_training
from tessera.engines.simulated.accounts import Accounts
from tessera.engines.simulated.costs import (
    NO_WORK,
    Costs,
    Work,
    is_counted,
    is_host,
    node_name,
    work_kind,
)
from tessera.engines.simulated.deployment import Deployment, on_one_machine
from tessera.engines.simulated.members import LockStepMembers
from tessera.engines.simulated.memory import refuse_too_little_memory, replica_bytes
from tessera.engines.simulated.overlap import BeginStep, StepDone
from tessera.engines.simulated.prediction import Prediction
from tessera.engines.simulated.programs import applies, check_names, with_costs, with_names_of, with_tokens
from tessera.engines.simulated.replica import Share, SimulatedReplica, count_ages, drive_updates
from tessera.engines.simulated.replica_maker import ReplicaMaker
from tessera.engines.simulated.simulated_node import SimulatedNode
from tessera.engines.simulated.tokens import NOTHING, Token
from tessera.engines.simulated.virtual_time import Event, VirtualTime
from tessera.engines.simulated.wiring import Wiring, count_links
from tessera.envs.base import Environment
from tessera.errors import TesseraError
from tessera.graph.disciplines import Newest
from tessera.graph.plan import Plan
from tessera.program.compile import merge_segments
from tessera.program.keys import clock_at, count_of
from tessera.program.nodes import WIRING, Deferred, Node, Op, Recv, Repeat, Segment, Send, effects
from tessera.program.project import project
from tessera.program.shapes import Shapes, slot_shapes
from tessera.support.trees import bytes_of

ENDLESS = 1 << 30
"""Updates of a replica that runs until others are done."""
TICK = 1e-9
"""The shortest wait, in seconds."""


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
        self.plan, self.algorithm = self.deployment.plan, algorithm
        plan = self.plan
        self._random = Random(seed).random
        self.time = VirtualTime()
        self._measured_from = 0.0
        self.nodes = [SimulatedNode(self.time, kind, costs) for kind in self.deployment.kinds]
        training = make_training(plan, algorithm, env)
        self.costs = costs = with_names_of(training, costs)
        self._lag = training.lag
        routes = make_routes(plan, algorithm)
        shapes = slot_shapes(training, plan) if shapes is None else shapes
        specs = make_link_specs(plan, routes, shapes, routes[0].shards if routes else None)
        self._empty = {slot for slot, shape in shapes.items() if not bytes_of(shape)}
        """Slots without values, such as the memory of a network that has none: nobody waits for them."""
        self.routes = [with_tokens(route, plan) for route in routes]
        wiring = Wiring(
            deployment=self.deployment,
            routes=self.routes,
            nodes=self.nodes,
            costs=costs,
            shapes=shapes,
            shards=routes[0].shards if routes else None,
            time=self.time,
            wake=self._wake,
            charge=self._charge,
            counts=count_links(specs),
        )
        self.links = {name: wiring.make_link(name, spec) for name, spec in specs.items()}
        self._copies, self._sizes = wiring.copies, wiring.sizes
        self.programs = [
            with_costs(merge_segments(project(training.updates(), plan, i))) for i in range(len(plan.fragments))
        ]
        full = self.deployment.full
        self.memory = {
            f.title: costs.process_bytes(f.operators) + replica_bytes(full, i, self.programs[i], shapes)
            for i, f in enumerate(full.fragments)
        }
        refuse_too_little_memory(self.deployment, self.memory)
        check_names(costs, training)
        self._effects: dict[int, tuple[set[str], set[str], tuple[int, int]]] = {}
        self._solo = plan.home("apply") if plan.solo else None
        """The fragment that applies gradients one by one."""
        self._applied = [0, 0]
        """Gradients that were applied one by one, and how many they stand for."""
        maker = ReplicaMaker(
            deployment=self.deployment,
            algorithm=algorithm,
            env=env,
            nodes=self.nodes,
            routes=self.routes,
            links=self.links,
            groups=wiring.make_groups(self.links),
            generator=np.random.default_rng(seed),
            clock=lambda: self.time.now,
            trace=trace,
        )
        self.replicas = [maker.make(place) for place in range(len(plan.places))]
        for replica in self.replicas:
            self._begin(replica)

    def run(self, updates: int, warmup: int = 5) -> Prediction:
        """Let so many updates pass, after some that fill the queues, and say how it went; an engine runs once."""
        if self.time.now:
            raise TesseraError("a simulated engine runs once: make another one")
        for replica in self.replicas:
            # nobody stops while others are still measured: they would have the cores for themselves
            counts = (warmup, updates, self.plan.lag + 1) if self.plan.counted(replica.fragment) else (ENDLESS,)
            replica.running = drive_updates(replica, self.programs[replica.fragment], counts, lambda: self.time.now)
        for replica in self.replicas:
            self._advance(replica)
        self._until(warmup)
        self._measured_from = self.time.now
        self._begin_measuring()
        self._until(warmup + updates)
        return self._prediction(updates)

    def _begin_measuring(self) -> None:
        self._measured_from, self._applied = self.time.now, [0, 0]
        for node in self.nodes:
            node.begin_measuring()
        for replica in self.replicas:
            replica.busy, replica.waits_since = 0.0, max(replica.waits_since, self.time.now)
            replica.waited.clear()
            replica.port.take_flows()
            count_ages(replica.port)

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
            self._end_wait(replica)

    def _begin_wait(self, replica: SimulatedReplica, node: Node) -> None:
        """Have a replica wait for an exchange, or until it can go on without."""
        replica.waits, replica.waits_since, replica.began_to_wait = node, self.time.now, self.time.now
        if isinstance(node, Recv) and node.timeout is not None:
            # the clock has to move, or what is left of a wait may be lost in rounding, again and again
            seconds = max(node.timeout, TICK, 2 * math.ulp(self.time.now))
            self.time.after(seconds, lambda: self._end_wait(replica) if replica.waits is node else None)

    def _end_wait(self, replica: SimulatedReplica) -> None:
        """Have a replica look again."""
        begun, node = replica.began_to_wait, replica.waits
        self._count_waiting(replica)
        replica.waits = None
        replica.debt += self.costs.wake_for(node.slot if isinstance(node, Send | Recv) else "", replica.cores.full)
        if self.time.now - begun > SPIN_SECONDS:
            replica.called.clear()
        self._advance(replica)

    def _count_waiting(self, replica: SimulatedReplica) -> None:
        """Count what it has waited since it began, or since measuring did."""
        node, begun = replica.waits, replica.waits_since
        if isinstance(node, Send | Recv):
            replica.waited[node.slot] += self.time.now - begun
            if replica.tracer is not None:
                replica.tracer.span(node, begun, waiting=True)
        replica.waits_since = self.time.now

    def _charge(self, place: int, seconds: float, name: str) -> float:
        replica = self.replicas[place]
        replica.debt += seconds + self._extra(replica, name)
        return replica.debt

    def _extra(self, replica: SimulatedReplica, name: str) -> float:
        """By how much something takes longer if it is the first of its kind after a wait."""
        if name in replica.called:
            return 0.0
        replica.called.add(name)
        return self.costs.after_wait.get(name, 0.0)

    def _advance(self, replica: SimulatedReplica) -> None:
        """Let a replica go on until it works or waits."""
        goes_on = True
        while goes_on:
            node, replica.stalled = replica.stalled or next(replica.running, None), None
            if isinstance(node, Deferred):
                replica.turn_to(node.part)
            match node:
                case None:
                    return
                case Repeat():
                    replica.meet(one_by_one=True)
                case BeginStep():
                    self._begin_step(replica, node)
                case StepDone(nodes=nodes):
                    goes_on = self._is_there(replica, node, effects(nodes)[1])
                case Deferred(nodes=()):
                    goes_on = self._is_there(replica, node, tuple(replica.slots))
                case Deferred(nodes=(Send(slot=slot),)):
                    goes_on = self._is_there(replica, node, (slot,))
                    if goes_on:
                        replica.meet(one_by_one=False)
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
                    goes_on = False
                    self._begin_wait(replica, node)

    def _is_there(self, replica: SimulatedReplica, node: Node, slots: Iterable[str]) -> bool:
        """Whether what slots hold is made; if not, the replica stands at the node until it is."""
        job = replica.beside.first_unfinished(_jobs(replica.share, slots))
        if job is not None:
            replica.stalled = node
            replica.beside.when_done(job, lambda: self._advance(replica))
        return job is None

    def _call(self, replica: SimulatedReplica, node: Node, op: Op) -> bool:
        """Call an Op in Python: at once if it only passes values on, else when what it reads is there."""
        if op.kind == WIRING:
            self._pass_on(replica, op)
            return True
        if not self._is_there(replica, node, op.reads):
            return False
        work = self._draw(replica, op, replica.members)
        replica.debt += self.costs.per_node + self._extra(replica, node_name(op))
        self._write(replica, op, 0)
        return self._work(replica, work, op)

    def _draw(self, replica: SimulatedReplica, node: Segment | Op, members: LockStepMembers | None) -> Work:
        """The work of one call, for those that it plays or learns from: of the slowest of members in lock-step, of all
        gradients that one stands for."""
        count = int(replica.slots["count"])
        envs = _envs(replica, replica.share, node)
        calls = self.costs.calls(node, envs, replica.threads) if members is not None else None
        if calls is not None and members is not None:
            return members.draw(calls, count if is_counted(node) else 1)
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
        work, more = self._draw(replica, segment, replica.members), self._extra(replica, node_name(segment))
        work, share = Work(work.seconds + more, work.cpu_seconds + more), replica.share
        replica.debt += self.costs.per_node
        read = _jobs(share, self._known_effects(segment)[0])
        if replica.device is None:  # that of an accelerator has a queue of its own
            read |= {replica.segment}
        job = replica.segment = replica.beside.begin(
            read, lambda done: self._start(replica, work, done, segment, share)
        )
        self._write(replica, segment, job)
        if segment.fetched:
            replica.beside.when_done(job, lambda: self._advance(replica))
        return not segment.fetched

    def _begin_step(self, replica: SimulatedReplica, node: BeginStep) -> None:
        """Have the thread that steps run host Ops, after what it was given before; the program goes on."""
        ops = [op for op in node.nodes if isinstance(op, Op)]
        works = [self._draw(replica, op, replica.stepping_members) for op in ops]
        more = sum(self.costs.per_node + self._extra(replica, node_name(op)) for op in ops)
        work = Work(sum(w.seconds for w in works) + more, sum(w.cpu_seconds for w in works) + more)
        read = _jobs(replica.share, effects(node.nodes)[0]) | {replica.stepping}
        replica.stepping = replica.beside.begin(read, lambda done: self._start(replica, work, done, ops[0], thread=1))
        for op in ops:
            self._write(replica, op, replica.stepping)

    def _known_effects(self, node: Segment | Op) -> tuple[set[str], set[str], tuple[int, int]]:
        """What a segment or an Op reads and writes, and how many gradients it applies (`applies`)."""
        if id(node) not in self._effects:
            nodes = node.nodes if isinstance(node, Segment) else (node,)
            self._effects[id(node)] = (*effects(nodes), applies(nodes))
        return self._effects[id(node)]

    def _work(self, replica: SimulatedReplica, work: Work, node: Op | None = None) -> bool:
        """Have the program of a replica work, also on what it owes, and then go on; whether it can at once."""
        work = Work(work.seconds + replica.debt, work.cpu_seconds + replica.debt)
        replica.debt = 0.0
        if work.seconds:
            self._start(replica, work, lambda: self._advance(replica), node)
        return not work.seconds

    def _start(
        self, replica: SimulatedReplica, work: Work, then: Event, node: Segment | Op | None,
        share: Share | None = None, thread: int = 0,
    ) -> None:  # fmt: skip
        """Do work: on as many cores as it keeps busy, or asleep for a part of it, or on a device for a part of it."""
        begun = self.time.now
        if not replica.working:
            replica.working_since = self.time.now
        replica.working += 1

        def done() -> None:
            self._count_busy(replica)
            replica.working -= 1
            if replica.tracer is not None and node is not None:
                replica.tracer.span(node, begun, thread=thread)
            then()

        cores, device = replica.cores, None if node is None or is_host(node) else replica.device
        if device is not None and node is not None and work.seconds:
            on_device = self._device_seconds(replica, share or replica.whole, node, work)
            threads = work.cpu_seconds / work.seconds
            cores.run(work.seconds - on_device, lambda: device.run(on_device, done, replica.place), threads)
        elif (idle := max(work.seconds - work.cpu_seconds, 0.0)) > 0:
            cores.run(work.cpu_seconds, lambda: self.time.after(idle, done))
        else:
            cores.run(work.seconds, done, work.cpu_seconds / work.seconds if work.seconds else 1.0)

    def _device_seconds(self, replica: SimulatedReplica, share: Share, node: Segment | Op, work: Work) -> float:
        """The part of a call in which the device works: that of its Ops within a program. In the rest a core gives the
        device its work, and takes the results."""
        envs = _envs(replica, share, node)
        return min(work.seconds, self.costs.device_seconds(node, envs, int(replica.slots["count"])))

    def _count_busy(self, replica: SimulatedReplica) -> None:
        """Count what it has worked since it began, or since measuring did."""
        if replica.working:
            replica.busy += self.time.now - max(replica.working_since, self._measured_from)
            replica.working_since = self.time.now

    def _pass_on(self, replica: SimulatedReplica, op: Op) -> None:
        """Fill slots with what others hold; params that trail behind stand in a queue."""
        slots = replica.share.slots
        if "acting_queue" in op.reads:
            waiting: tuple[Token, ...] = (*slots["acting_queue"], slots["published"])
            slots["acting"], slots["acting_queue"] = waiting[0], waiting[1:]
        else:
            self._write(replica, op, max(_jobs(replica.share, op.reads), default=0))

    def _write(self, replica: SimulatedReplica, work: Segment | Op, job: int) -> None:
        """Put tokens into the slots that a segment or an Op writes."""
        share, count = replica.share, int(replica.slots["count"])
        slots = share.slots
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
                size = self._sizes[replica.place, slot] * share.groups // max(replica.groups, 1)
                stands_for = round(replica.stands_for * replica.gradients)
                slots[slot] = Token(version, share.groups, size, made_by, stands_for)

    def _prediction(self, updates: int) -> Prediction:
        seconds = self.time.now - self._measured_from
        if not seconds:
            raise TesseraError("all of this costs nothing, so nothing can be predicted: give the costs of some Ops")
        for replica in self.replicas:
            self._count_busy(replica)
            self._count_waiting(replica)
            if replica.tracer is not None:
                replica.tracer.close()
        return Accounts(
            deployment=self.deployment,
            replicas=self.replicas,
            nodes=self.nodes,
            memory=self.memory,
            copies=self._copies,
            gradients=self._applied[1] / self._applied[0] if self._solo is not None and self._applied[0] else 1.0,
            updates=updates,
            seconds=seconds,
            steps=self.algorithm.schedule.steps,
        ).prediction()


def _jobs(share: Share, slots: Iterable[str]) -> set[int]:
    """What makes the tokens in slots, by number."""
    return {token.job for s in slots if isinstance(token := share.slots.get(s), Token)}


def _envs(replica: SimulatedReplica, share: Share, node: Segment | Op) -> int:
    """Environments that one call is for."""
    return replica.learned if work_kind(node) == "learn" else share.envs
