"""Schedulers: they decide which loops run in slices, and in which order the slices advance."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Protocol

from tessera.program.nodes import Repeat, Slots
from tessera.program.overlap.double_buffer import DoubleBuffering
from tessera.program.overlap.ready_batching import ReadyBatching
from tessera.program.overlap.sliced_loop import Context, SlicedLoop


class Scheduler(Protocol):
    """Cuts loops into slices."""

    def split(self, context: Context, loop: Repeat, slots: Slots) -> SlicedLoop | None:
        """Cut a loop into slices; None if it runs as a whole."""


class PlainScheduler:
    """Runs every loop as a whole."""

    def split(self, context: Context, loop: Repeat, slots: Slots) -> None:
        """Cut nothing."""


class OverlapScheduler:
    """Overlaps acting and stepping wherever the environments or the port allow it.

    Args:
        executor: steps double-buffered environments; a thread of its own by default.
    """

    def __init__(self, executor: Executor | None = None) -> None:
        self._double_buffering, self._ready_batching = DoubleBuffering(executor), ReadyBatching()

    def split(self, context: Context, loop: Repeat, slots: Slots) -> SlicedLoop | None:
        """Cut a loop in two if its environments are double-buffered, or by its peers if they are batched."""
        in_two = self._double_buffering.split(context, loop, slots)
        return self._ready_batching.split(context, loop, slots) if in_two is None else in_two
