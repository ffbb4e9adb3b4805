"""A stopwatch for a replica's program: how long each call and each message takes, and how long cores work for it."""

from __future__ import annotations

import resource
import time
from collections import Counter
from typing import NamedTuple

from tessera.channels.shared_memory import SPIN_SECONDS
from tessera.engines.replica.trace import Row
from tessera.engines.simulated.costs import Work, exchange_name, is_counted, node_name
from tessera.program.nodes import HOST, WIRING, Node, Op, Recv, Segment, Send

MOST_CALLS = 256
"""Calls of one node that are kept, evenly from all that were timed."""
LEAST_SHARE = 0.2
"""Share of calls without a break that is enough for the others to be left out."""


class TimedCall(NamedTuple):
    """One call of a segment or an Op, or one exchange."""

    seconds: float
    cpu_seconds: float
    """Of all threads of the process. What a thread that is still running has worked since the kernel last looked is
    missing, so this is right for many calls together, and for one only if it takes many milliseconds."""
    broken: bool = False
    """Whether another process has taken a core from one of its threads."""

    def times(self, factor: float) -> TimedCall:
        """For one update, if it made many."""
        return TimedCall(self.seconds * factor, self.cpu_seconds * factor, self.broken)


class Stopwatch:
    """The recorder of a replica: it is asked for the time before a node, and called when the node is done."""

    def __init__(self) -> None:
        self.active = True
        self.turns = 1
        """Updates that a program makes whose number the engine says."""
        self.calls: dict[str, list[TimedCall]] = {}
        """Segments and Ops that Python calls, by name."""
        self.switches: Counter[str] = Counter()
        """How often an Op that Python calls has given up its core of its own accord, as what sleeps does."""
        self.exchanges: dict[tuple[int, str], list[TimedCall]] = {}
        """Channel and name of an exchange -> what sending or taking took; waiting does not count."""
        self.between = 0.0
        """Seconds that Python took between one node and the next."""
        self.nodes = 0
        self.spans = 0
        """How often it was asked, also for nodes that only pass values on."""
        self._ended: float | None = None
        """When the last node ended, if nothing else has happened since."""
        self._cores_at = 0.0
        self._switches_at = 0
        self._breaks_at = 0

    def clear(self) -> None:
        """Forget all calls, such as those that compiled."""
        self.calls.clear()
        self.exchanges.clear()
        self.switches.clear()
        self.between, self.nodes, self.spans = 0.0, 0, 0

    def begin(self) -> None:
        """Note that a program begins, and not the next node of one that is under way."""
        self._ended = None

    def clock(self) -> float:
        """The time, at which a node may begin."""
        self._switches_at, self._breaks_at = voluntary_switches(), involuntary_switches()
        self._cores_at = time.process_time()
        return time.perf_counter()

    def span(self, node: Node, begin: float, waiting: bool = False) -> float:
        """Note that a node took from `begin` until now; returns now."""
        end, cores_at = time.perf_counter(), time.process_time()
        self.spans += 1
        if waiting:
            self._ended = None
            self.waited(end - begin)
        elif self._note(
            node, TimedCall(end - begin, cores_at - self._cores_at, involuntary_switches() > self._breaks_at)
        ):
            if self._ended is not None:
                self.between += begin - self._ended
            self._ended = time.perf_counter()
        return self.clock()

    def waited(self, seconds: float) -> None:
        """Note that the replica has waited."""

    def own_seconds(self) -> float:
        """What it takes itself for one node."""
        other, times = Stopwatch(), 500
        passed = Op("act", tuple, (), (), WIRING)
        begun = time.perf_counter()
        for _ in range(times):
            other.span(passed, other.clock())
        return (time.perf_counter() - begun) / times

    def flush(self) -> list[Row]:
        """Nothing to do: nobody reads it while it runs."""
        return []

    def close(self) -> None:
        """Nothing to do: it has no file."""

    def _note(self, node: Node, call: TimedCall) -> bool:
        """Note a node; whether it is more than a value that is passed on."""
        match node:
            case Segment():
                self.note_call(node_name(node), call.times(1 / self.turns) if is_counted(node) else call)
            case Op(kind=kind) if kind == HOST:
                self.note_call(node_name(node), call)
                self.switches[node_name(node)] += voluntary_switches() - self._switches_at
            case Send(channel=channel, slot=slot) | Recv(channel=channel, slot=slot):
                self.note_exchange(channel, exchange_name(slot, isinstance(node, Send)), call)
            case _:
                return False
        self.nodes += 1
        return True

    def note_call(self, name: str, call: TimedCall) -> None:
        """Keep the call of a segment or an Op."""
        self.calls.setdefault(name, []).append(call)

    def note_exchange(self, channel: int, name: str, call: TimedCall) -> None:
        """Keep an exchange."""
        self.exchanges.setdefault((channel, name), []).append(call)


class FirstCalls(Stopwatch):
    """Keeps only what was the first of its kind after a wait of the replica: cores have slept, caches are cold."""

    def __init__(self) -> None:
        super().__init__()
        self._called: set[str] = set()

    def waited(self, seconds: float) -> None:
        """All that comes next is the first of its kind, unless the core was kept."""
        if seconds > SPIN_SECONDS:
            self._called.clear()

    def note_call(self, name: str, call: TimedCall) -> None:
        """Keep the call if it is the first."""
        if self._is_first(name):
            super().note_call(name, call)

    def note_exchange(self, channel: int, name: str, call: TimedCall) -> None:
        """Keep the exchange if it is the first."""
        if self._is_first(name):
            super().note_exchange(channel, name, call)

    def _is_first(self, name: str) -> bool:
        first = name not in self._called
        self._called.add(name)
        return first


def voluntary_switches() -> int:
    """How often this thread has given up its core of its own accord."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def involuntary_switches() -> int:
    """How often a core was taken from a thread of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def undisturbed(calls: list[TimedCall]) -> list[Work]:
    """Calls of something that never sleeps, as they would be without other processes.

    Those that were not broken count with their time; if there are few, all count with the part of their time that cores
    worked for them.
    """
    whole = [call for call in calls if not call.broken]
    enough = len(whole) >= max(1, LEAST_SHARE * len(calls))
    kept = whole if enough else calls
    total = sum(call.seconds for call in kept)
    busy = sum(call.cpu_seconds for call in kept) / total if total else 1.0
    alone = 1.0 if enough else min(1.0, busy)
    return [Work(alone * call.seconds, max(alone, busy) * call.seconds) for call in kept]


def thinned(calls: list[Work]) -> tuple[Work, ...]:
    """At most MOST_CALLS of them, from the whole range of time."""
    if len(calls) <= MOST_CALLS:
        return tuple(calls)
    return tuple(calls[k * len(calls) // MOST_CALLS] for k in range(MOST_CALLS))
