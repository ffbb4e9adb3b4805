"""How fast a core is while something is timed: on a machine that others share it comes and goes within seconds."""

from __future__ import annotations

import statistics
import time

import numpy as np

SAMPLE_SECONDS = 0.0025
"""How long one sample takes, of a core's time."""
PART_SECONDS = 0.08
"""How long what is timed may take between two samples, about: slow phases last from a tenth of a second on."""


class CoreSpeed:
    """The mean speed of a core, sampled before, between and after the parts of what is timed.

    Where programs run on accelerators it is always 1: how long they take does not follow the speed of a core.
    """

    def __init__(self, on_accelerators: bool) -> None:
        self._ignored = on_accelerators
        self._samples: list[float] = []
        self.sample()

    def sample(self) -> None:
        """Look how fast a core is now."""
        if not self._ignored:
            self._samples.append(turns_per_microsecond(SAMPLE_SECONDS))

    @property
    def mean(self) -> float:
        """Of all samples."""
        return 1.0 if self._ignored else statistics.fmean(self._samples)


def turns_per_microsecond(seconds: float) -> float:
    """Turns of a small piece of work that a core makes in a microsecond of its time.

    The work is to allocate and copy small arrays, call by call. Others on the same processor slow it down about as
    much as acting, stepping and messages, and a loop of arithmetic half as much (`benchmarks/core_speed.py`). It is
    the time of this thread alone: those of a compiled program spin for a while when it is done.
    """
    rows, turns = np.ones((16, 64), np.float32), 0
    begun = time.thread_time()
    while time.thread_time() - begun < seconds:
        for _ in range(10):
            np.stack([rows, rows]).copy()
            np.concatenate([rows, rows])
        turns += 10
    return 1e-6 * turns / (time.thread_time() - begun)
