"""One replica in virtual time: its program, its port, and what it is doing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tessera.channels.port import ReplicaPort
from tessera.engines.replica.trace import TraceWriter
from tessera.engines.simulated.members import LockStepMembers
from tessera.engines.simulated.overlap import VirtualOverlap
from tessera.engines.simulated.prediction import CountedFlow
from tessera.engines.simulated.side_jobs import SideJobs
from tessera.engines.simulated.simulated_node import SimulatedNode
from tessera.engines.simulated.virtual_time import Device
from tessera.program.interfaces import Clock
from tessera.program.interpreter import drive
from tessera.program.nodes import Deferred, Node, Repeat, Slots
from tessera.program.overlap.sliced_loop import GroupSlice

ALL_DONE = Deferred(())
"""The end of a program: its reports are read, so that everything has to be there."""


@dataclass(frozen=True)
class Share:
    """What a piece of work is for: all of a replica's groups, or some of them."""

    slots: Slots
    groups: int
    envs: int
    """Environments of these groups; of one of the replicas, if several are simulated as one."""


class SimulatedReplica:
    """One replica: its program, its port, and what it is doing."""

    def __init__(
        self, place: int, fragment: int, title: str, port: ReplicaPort, node: SimulatedNode, device: Device | None,
        groups: int, envs: int, learned: int, threads: int, stands_for: float, members: LockStepMembers | None,
        served_alone: bool, tracer: TraceWriter | None, first_half: int = 0,
    ) -> None:  # fmt: skip
        """`served_alone`: its messages are answered without those of its peers; `first_half` of its groups are the
        first to step, if its environments are double-buffered, else it is 0."""
        self.place, self.fragment, self.title, self.port, self.device = place, fragment, title, port, device
        self.groups, self.envs, self.learned, self.threads, self.cores = groups, envs, learned, threads, node.cores
        self.stands_for, self.members, self.tracer = stands_for, members, tracer
        self.served_alone = served_alone
        self.gradients = 1
        """How many the one that it applied last stands for."""
        self.slots: Slots = {}
        self.whole = Share(self.slots, groups, envs)
        self.share = self.whole
        """What its program works on."""
        self.overlap = VirtualOverlap(groups, first_half)
        self.segment = 0
        """The segment that was called last, by its number."""
        self.stepping = 0
        """What the thread that steps was given last, by its number."""
        self.stepping_members = None if members is None else members.beside()
        """The members, as that thread counts their time."""
        self.running: Iterator[Node] = iter(())
        self.stalled: Node | None = None
        """The node that it stands at until what it reads is there."""
        self.waits: Node | None = None
        """The exchange that it waits for."""
        self.waits_since = 0.0
        """When it began to wait, or when measuring did."""
        self.began_to_wait = 0.0
        self.called: set[str] = set()
        """Segments, Ops and exchanges, by name, that were called since it last waited."""
        self.waited: defaultdict[str, float] = defaultdict(float)
        """Slot -> seconds that it waited to send or to receive it."""
        self.debt = 0.0
        """Seconds of work with messages, which it does before it goes on."""
        self.busy = 0.0
        self.working = 0
        """Pieces of work under way: that of its program, and segments beside it."""
        self.working_since = 0.0
        self.updates = 0
        self.beside = SideJobs()

    def meet(self, one_by_one: bool) -> None:
        """Have members wait for each other: when they send; or at the end of an update, if they are answered one by
        one."""
        if self.members is not None and self.stepping_members is not None and one_by_one == self.served_alone:
            self.members.meet()
            self.stepping_members.meet()

    def turn_to(self, part: GroupSlice | None) -> None:
        """Work on some of the groups from here on; None: on all."""
        if part is None:
            self.share = self.whole
        else:
            groups = len(range(*part.groups.indices(self.groups)))
            self.share = Share(part.slots, groups, max(1, round(self.envs * groups / self.groups)))


def count_ages(port: ReplicaPort) -> None:
    """Have a port keep how old what arrives is."""
    for inbox in port.inboxes.values():
        inbox.flow = CountedFlow()


def drive_updates(
    replica: SimulatedReplica, program: tuple[Node, ...], counts: tuple[int, ...], clock: Clock
) -> Iterator[Node]:
    """Run a program for so many updates, again and again; count those that are done."""
    for count in counts:
        begun, replica.slots["count"] = replica.updates, np.int64(count)
        for node in drive(program, replica.slots, replica.port, None, replica.overlap, clock):
            replica.updates += isinstance(node, Repeat)
            yield node
        yield ALL_DONE
        replica.updates = begun + count  # also where a segment made all of them
