"""One replica in virtual time: its program, its port, and what it is doing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np

from tessera.channels.port import ReplicaPort
from tessera.engines.replica.trace import TraceWriter
from tessera.engines.simulated.members import LockStepMembers
from tessera.engines.simulated.prediction import CountedFlow
from tessera.engines.simulated.simulated_node import SimulatedNode
from tessera.engines.simulated.virtual_time import Device
from tessera.program.interpreter import drive
from tessera.program.nodes import Deferred, Node, Repeat, Slots
from tessera.program.overlap.scheduler import PlainScheduler

ALL_DONE = Deferred(())
"""The end of a program: its reports are read, so that everything has to be there."""


class SimulatedReplica:
    """One replica: its program, its port, and what it is doing."""

    def __init__(
        self, place: int, fragment: int, title: str, port: ReplicaPort, node: SimulatedNode, device: Device | None,
        groups: int, envs: int, learned: int, threads: int, stands_for: float, members: LockStepMembers | None,
        tracer: TraceWriter | None,
    ) -> None:  # fmt: skip
        self.place, self.fragment, self.title, self.port, self.device = place, fragment, title, port, device
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
        self.jobs = 0
        """Segments that were begun beside its program."""
        self.unfinished: dict[int, list[Callable[[], None]]] = {}
        """Those that are not done -> what waits for them."""


def count_ages(port: ReplicaPort) -> None:
    """Have a port keep how old what arrives is."""
    for inbox in port.inboxes.values():
        inbox.flow = CountedFlow()


def drive_updates(replica: SimulatedReplica, program: tuple[Node, ...], counts: tuple[int, ...]) -> Iterator[Node]:
    """Run a program for so many updates, again and again; count those that are done."""
    for count in counts:
        begun, replica.slots["count"] = replica.updates, np.int64(count)
        for node in drive(program, replica.slots, replica.port, None, PlainScheduler()):
            replica.updates += isinstance(node, Repeat)
            yield node
        yield ALL_DONE
        replica.updates = begun + count  # also where a segment made all of them
