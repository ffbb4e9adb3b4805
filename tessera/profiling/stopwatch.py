"""A stopwatch for a replica's program: how long each call and each message takes, and how long cores work for it."""

from __future__ import annotations

import resource
import time
from collections import Counter

from tessera.engines.simulated.costs import Work, is_counted, node_name
from tessera.program.nodes import HOST, WIRING, Node, Op, Recv, Segment, Send

MOST_CALLS = 256
"""Calls of one node that are kept, evenly from all that were timed."""

End = tuple[int, bool]
"""A channel, and whether this is the end that sends."""


class Stopwatch:
    """The tracer and the clock of a replica: it is asked for the time before a node, and told when the node is done."""

    def __init__(self) -> None:
        self.turns = 1
        """Updates that a program makes whose number the engine says."""
        self.calls: dict[str, list[Work]] = {}
        """Segments and Ops that Python calls, by name."""
        self.switches: Counter[str] = Counter()
        """How often an Op that Python calls has given up its core of its own accord, as what sleeps does."""
        self.messages: dict[End, list[float]] = {}
        """Seconds in which a message was sent or taken; waiting does not count."""
        self.between = 0.0
        """Seconds that Python took between one node and the next."""
        self.nodes = 0
        self.spans = 0
        """How often it was asked, also for nodes that only pass values on."""
        self._ended: float | None = None
        """When the last node ended, if nothing else has happened since."""
        self._cores_at = 0.0
        self._switches_at = 0

    def clear(self) -> None:
        """Forget all calls, such as those that compiled."""
        self.calls.clear()
        self.messages.clear()
        self.switches.clear()
        self.between, self.nodes, self.spans = 0.0, 0, 0

    def begin(self) -> None:
        """Note that a program begins, and not the next node of one that is under way."""
        self._ended = None

    def clock(self) -> float:
        """The time, at which a node may begin."""
        self._cores_at, self._switches_at = time.process_time(), voluntary_switches()
        return time.perf_counter()

    def span(self, node: Node, begin: float, waiting: bool = False) -> float:
        """Note that a node took from `begin` until now; returns now."""
        end, cores_at = time.perf_counter(), time.process_time()
        self.spans += 1
        if waiting:
            self._ended = None
        elif self._note(node, Work(end - begin, cores_at - self._cores_at)):
            if self._ended is not None:
                self.between += begin - self._ended
            self._ended = time.perf_counter()
        return self.clock()

    def own_seconds(self) -> float:
        """What it takes itself for one node."""
        other, times = Stopwatch(), 500
        passed = Op("act", tuple, (), (), WIRING)
        begun = time.perf_counter()
        for _ in range(times):
            other.span(passed, other.clock())
        return (time.perf_counter() - begun) / times

    def close(self) -> None:
        """Nothing to do: it has no file."""

    def _note(self, node: Node, work: Work) -> bool:
        """Note a node; whether it is more than a value that is passed on."""
        match node:
            case Segment():
                one = work.times(1 / self.turns) if is_counted(node) else work
                self.calls.setdefault(node_name(node), []).append(one)
            case Op(kind=kind) if kind == HOST:
                self.calls.setdefault(node_name(node), []).append(work)
                self.switches[node_name(node)] += voluntary_switches() - self._switches_at
            case Send(channel=channel) | Recv(channel=channel):
                self.messages.setdefault((channel, isinstance(node, Send)), []).append(work.seconds)
            case _:
                return False
        self.nodes += 1
        return True


def voluntary_switches() -> int:
    """How often this thread has given up its core of its own accord."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def thinned(calls: list[Work]) -> tuple[Work, ...]:
    """At most MOST_CALLS of them, from the whole range of time."""
    if len(calls) <= MOST_CALLS:
        return tuple(calls)
    return tuple(calls[k * len(calls) // MOST_CALLS] for k in range(MOST_CALLS))
