"""Double buffering: half of the host environments step, in a thread, while actions are chosen for the other half.

It pays where stepping lets other threads run (simulators in C++), and only such environments are opened as two vectors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import replace

import numpy as np

from tessera.envs.base import HostEnvironment, HostVector, InfoTotals, Timestep, merge_totals
from tessera.program.environment_calls import call_environment
from tessera.program.nodes import HOST, Deferred, Node, Op, Repeat, Segment, Slots
from tessera.program.overlap.sliced_loop import Context, Run, SlicedLoop
from tessera.program.overlap.slot_slices import concatenate_trees
from tessera.support import machine


class DoubleBufferedVector(HostVector):
    """Two vectors of environments that can be stepped together, or each alone."""

    def __init__(self, parts: tuple[HostVector, HostVector], first_groups: int) -> None:
        self.parts = parts
        self.cuts = (slice(0, first_groups), slice(first_groups, None))
        """The groups of each part."""

    def reset(self) -> Timestep:
        """Start every environment."""
        return concatenate_trees([part.reset() for part in self.parts], 0)

    def step(self, actions: np.ndarray) -> Timestep:
        """Play one step in every environment."""
        return concatenate_trees([part.step(actions[cut]) for part, cut in zip(self.parts, self.cuts, strict=True)], 0)

    def take_info(self) -> InfoTotals:
        """Those of both."""
        taken: InfoTotals = {}
        for part in self.parts:
            merge_totals(taken, part.take_info())
        return taken

    def close(self) -> None:
        """Close both."""
        for part in self.parts:
            part.close()


def open_environments(env: HostEnvironment, ids: np.ndarray, seed: int) -> HostVector:
    """Open environments, double-buffered where that pays and there is more than one group."""

    def opened(part: np.ndarray) -> HostVector:
        return call_environment(env.name, lambda: "as it was made", env.open, part, seed)

    if not env.threaded or len(ids) < 2 or machine.cores() < 2:
        return opened(ids)
    half = len(ids) // 2
    return DoubleBufferedVector((opened(ids[:half]), opened(ids[half:])), half)


class DoubleBuffering:
    """Runs loops over double-buffered environments in two slices, whose host Ops run in an executor.

    Args:
        executor: runs one call at a time; a thread of its own by default.
    """

    def __init__(self, executor: Executor | None = None) -> None:
        self._executor = executor

    def split(self, context: Context, loop: Repeat, slots: Slots) -> SlicedLoop | None:
        """Cut a loop in two if its environments are double-buffered and nothing in it is exchanged."""
        vector = slots.get("env_state")
        if not isinstance(vector, DoubleBufferedVector) or not all(isinstance(n, Op | Segment) for n in loop.body):
            return None
        if context.tracer is not None:  # the spans of a replica must not overlap
            return None
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="tessera-stepper")
        return DoubleBufferedLoop(loop, vector, slots, self._executor)


class DoubleBufferedLoop(SlicedLoop):
    """Two slices of which one steps while the other acts."""

    def __init__(self, loop: Repeat, vector: DoubleBufferedVector, slots: Slots, executor: Executor) -> None:
        super().__init__(replace(loop, body=_defer_host_ops(loop.body)), slots, vector.cuts)
        for part, half in zip(self.slices, vector.parts, strict=True):
            part.slots["env_state"] = half
        self._executor = executor

    def advance(self, turns: list[Iterator[Node]], run: Run) -> Iterator[Node]:
        """Let slices take turns: each acts when its last step is over, and submits its next step to the executor."""
        stepping: dict[int, Future[None]] = {}
        running = list(range(len(turns)))
        try:
            while running:
                for k in list(running):
                    if k in stepping:
                        stepping[k].result()
                    node = next(turns[k], None)
                    if isinstance(node, Deferred):
                        stepping[k] = self._executor.submit(run, node.nodes, self.slices[k].slots)
                    else:
                        running.remove(k)
        except BaseException:
            wait(stepping.values())  # environments are not closed while they step
            raise
        return iter(())


def _defer_host_ops(body: tuple[Node, ...]) -> tuple[Node, ...]:
    """Defer every run of host Ops as one, so that threads are changed as rarely as possible."""
    out: list[Node] = []
    for on_host, run in itertools.groupby(body, lambda node: isinstance(node, Op) and node.kind == HOST):
        nodes = tuple(run)
        out += (Deferred(nodes),) if on_host else nodes
    return tuple(out)
