"""Replicas in lock-step that one stands for: it goes on when the last of them would."""

from __future__ import annotations

from collections import deque

import numpy as np

from tessera.engines.simulated.costs import Work


class LockStepMembers:
    """Each member draws its own work. What is waited for is the slowest of all, over all that they do until they meet.

    The slowest at one step need not be so at the next: the largest of many sums is less than the sum of the largest. So
    the time of each member is kept, and a piece of work takes as long as the time of the last member grows.
    """

    def __init__(self, count: int, lag: int, generator: np.random.Generator) -> None:
        """`lag` is by how many updates they may get ahead of the slowest."""
        self._times = np.zeros(count)
        self._met = deque([0.0], maxlen=lag + 1)
        self._generator = generator

    def beside(self) -> LockStepMembers:
        """The same members, as another thread of theirs counts their time."""
        return LockStepMembers(len(self._times), (self._met.maxlen or 1) - 1, self._generator)

    def draw(self, calls: np.ndarray, turns: int) -> Work:
        """The work of calls, drawn for each member from `calls` (seconds, and those of cores [2, calls])."""
        picked = self._generator.integers(calls.shape[1], size=(len(self._times), turns))
        drawn = calls[0][picked].sum(1)
        mean = float(drawn.mean())
        share = float(calls[1][picked].sum(1).mean()) / mean if mean else 0.0
        before = float(self._times.max())
        self._times += drawn
        seconds = float(self._times.max()) - before
        return Work(seconds, share * min(seconds, mean))

    def meet(self) -> None:
        """They send what others wait for."""
        self._met.append(float(self._times.max()))
        np.maximum(self._times, self._met[0], out=self._times)
