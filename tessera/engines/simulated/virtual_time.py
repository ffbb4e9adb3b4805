"""Virtual time: events in order, cores that threads share, and devices that serve one program after the other."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable

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


class Cores:
    """The cores of one machine, which all that is runnable shares.

    With k threads on C cores, each runs at min(1, C/k) of what it does alone, times the measured slowdown of k threads.
    All jobs run at the same rate. So there is one clock of work, which runs at that rate, and a job ends when the clock
    has advanced by its seconds: whoever comes or goes changes the rate, and no job has to be looked at.
    """

    def __init__(self, time: VirtualTime, count: int, slowdown: tuple[float, ...] = (), speed: float = 1.0) -> None:
        """`slowdown[k - 1]` is for k threads, beyond the table as its last; `speed` is relative to where costs were
        measured."""
        self._time, self.count, self._slowdown, self._speed = time, count, slowdown, speed
        self._jobs: list[tuple[float, int, float, Event]] = []
        """A heap: when the clock of work is there, number, threads, what comes then."""
        self._numbers = itertools.count()
        self._threads = 0.0
        self._work = 0.0
        """The clock of work."""
        self._settled = 0.0
        """When it was last set."""
        self._plan = 0
        """Grows whenever the next end is planned anew, which makes earlier plans void."""
        self.used = 0.0
        """Seconds in which cores were busy, summed over cores."""

    def run(self, seconds: float, then: Event, threads: float = 1) -> None:
        """Do work that takes so long alone at speed 1, and then call; it keeps so many threads busy."""
        self._settle()
        threads = min(threads, float(self.count))
        heapq.heappush(self._jobs, (self._work + seconds / self._speed, next(self._numbers), threads, then))
        self._threads += threads
        self._plan_next()

    @property
    def full(self) -> bool:
        """Whether every core has something to do."""
        return self._threads >= self.count

    def forget_use(self) -> None:
        """Count how busy cores are from here on."""
        self._settle()
        self.used = 0.0

    def _rate(self) -> float:
        """Seconds of work that each job gets done in a second."""
        shared = min(1.0, self.count / self._threads) if self._threads else 1.0
        if not self._slowdown:
            return shared
        return shared * self._slowdown[min(max(math.ceil(self._threads), 1), len(self._slowdown)) - 1]

    def _settle(self) -> None:
        """Set the clock of work, before the number of jobs changes."""
        if self._jobs:
            passed = self._time.now - self._settled
            self._work += passed * self._rate()
            self.used += passed * min(self._threads, self.count)
        self._settled = self._time.now

    def _plan_next(self) -> None:
        self._plan += 1
        if self._jobs:
            plan, seconds = self._plan, max(self._jobs[0][0] - self._work, 0.0) / self._rate()
            self._time.after(seconds, lambda: self._end() if plan == self._plan else None)
        else:
            self._work, self._threads = 0.0, 0.0  # so that the clock keeps its precision

    def _end(self) -> None:
        self._settle()
        end, _, threads, then = heapq.heappop(self._jobs)
        self._work = max(self._work, end)
        self._threads -= threads
        self._plan_next()
        then()


class Device:
    """An accelerator: it runs what it is given one after the other, of one process at a time."""

    def __init__(self, time: VirtualTime, speed: float = 1.0, switch: Callable[[int], float] = lambda _: 0.0) -> None:
        """`switch`: seconds that it takes to turn from the work of one process to another, by how many there are."""
        self._time, self._speed, self._switch = time, speed, switch
        self._waiting: deque[tuple[float, Event, int]] = deque()
        self._last: int | None = None
        """The process that it has worked for last."""
        self._processes: set[int] = set()

    def run(self, seconds: float, then: Event, process: int) -> None:
        """Do work that takes so long on a device of speed 1, after all that came before, and then call."""
        self._processes.add(process)
        self._waiting.append((seconds / self._speed, then, process))
        if len(self._waiting) == 1:
            self._begin()

    def _begin(self) -> None:
        seconds, _, process = self._waiting[0]
        switch = self._switch(len(self._processes)) if self._last not in (None, process) else 0.0
        self._last = process
        self._time.after(seconds + switch, self._end)

    def _end(self) -> None:
        _, then, _ = self._waiting.popleft()
        if self._waiting:
            self._begin()
        then()
