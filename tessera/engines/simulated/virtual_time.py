"""Virtual time: events in order, cores that threads share, and devices that serve one program after the other."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import Protocol

Event = Callable[[], None]


class VirtualTime:
    """A clock that jumps from event to event; events of one time come in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Event]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, event: Event) -> None:
        """Have something happen later."""
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), event))

    def step(self) -> bool:
        """Let the next event happen; False if there is none."""
        if not self._events:
            return False
        self.now, _, event = heapq.heappop(self._events)
        event()
        return True


class Processor(Protocol):
    """What work is done by."""

    def run(self, seconds: float, then: Event, threads: float = 1) -> None:
        """Do work that takes so long alone, and then call; it keeps so many threads busy."""


class Cores:
    """The cores of one machine, which all that is runnable shares.

    With more threads than cores, each gets an equal part.
    """

    def __init__(self, time: VirtualTime, count: int) -> None:
        self._time, self.count = time, count
        self._jobs: dict[int, tuple[float, float, Event]] = {}
        """Job -> seconds of work that are left, threads, what comes then."""
        self._numbers = itertools.count()
        self._settled = 0.0
        self._plan = 0
        """Grows whenever the next end is planned anew, which makes earlier plans void."""

    def run(self, seconds: float, then: Event, threads: float = 1) -> None:
        """Do work that takes so long alone, and then call; it keeps so many threads busy."""
        self._settle()
        self._jobs[next(self._numbers)] = (seconds, min(threads, self.count), then)
        self._plan_next()

    def _rate(self) -> float:
        """Seconds of work that each job gets done in a second."""
        threads = sum(job[1] for job in self._jobs.values())
        return min(1.0, self.count / threads)

    def _settle(self) -> None:
        """Account for what was done since the number of jobs last changed."""
        if self._jobs:
            done = (self._time.now - self._settled) * self._rate()
            self._jobs = {k: (left - done, threads, then) for k, (left, threads, then) in self._jobs.items()}
        self._settled = self._time.now

    def _plan_next(self) -> None:
        self._plan += 1
        if self._jobs:
            first = min(self._jobs, key=lambda k: self._jobs[k][0])
            plan, seconds = self._plan, max(self._jobs[first][0], 0.0) / self._rate()
            self._time.after(seconds, lambda: self._end(first) if plan == self._plan else None)

    def _end(self, job: int) -> None:
        self._settle()
        then = self._jobs.pop(job)[2]
        self._plan_next()
        then()


class Device:
    """An accelerator: it runs what it is given one after the other."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self._waiting: deque[tuple[float, Event]] = deque()

    def run(self, seconds: float, then: Event, threads: float = 1) -> None:
        """Do work that takes so long, after all that came before, and then call."""
        del threads
        self._waiting.append((seconds, then))
        if len(self._waiting) == 1:
            self._time.after(seconds, self._end)

    def _end(self) -> None:
        _, then = self._waiting.popleft()
        if self._waiting:
            self._time.after(self._waiting[0][0], self._end)
        then()
