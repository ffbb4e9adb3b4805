"""Double buffering: half of the host environments step, in a thread, while actions are chosen for the other half.

It pays where stepping lets other threads run (simulators in C++), and only such environments are opened as two vectors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TypeGuard

import numpy as np

from tessera.envs.base import HostEnvironment, HostVector, InfoTotals, Timestep, merge_totals
from tessera.program.environment_calls import call_environment
from tessera.program.nodes import HOST, Deferred, Node, Op, Repeat, Segment, Slots
from tessera.program.overlap.sliced_loop import Context, Run, SlicedLoop, for_slice
from tessera.program.overlap.slot_slices import TREES, SliceValues, concatenate_trees
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


def first_half(env: HostEnvironment, groups: int, cores: int) -> int:
    """Groups of the first of two vectors, where double buffering pays and there is more than one group; else 0."""
    return groups // 2 if env.threaded and groups > 1 and cores > 1 else 0


def open_environments(env: HostEnvironment, ids: np.ndarray, seed: int) -> HostVector:
    """Open environments, double-buffered where that pays and there is more than one group."""

    def opened(part: np.ndarray) -> HostVector:
        return call_environment(env.name, lambda: "as it was made", env.open, part, seed)

    half = first_half(env, len(ids), machine.cores())
    return DoubleBufferedVector((opened(ids[:half]), opened(ids[half:])), half) if half else opened(ids)


def can_be_halved(loop: Repeat) -> bool:
    """Whether nothing in a loop is exchanged, so that one half of the environments need not wait for the other."""
    return all(isinstance(node, Op | Segment) for node in loop.body)


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
        if not isinstance(vector, DoubleBufferedVector) or not can_be_halved(loop):
            return None
        if context.tracer is not None:  # the spans of a replica must not overlap
            return None
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="tessera-stepper")
        return ThreadedLoop(loop, vector, slots, self._executor)


class DoubleBufferedLoop(SlicedLoop):
    """Two slices of which one steps while the other acts; who steps them, one at a time, subclasses say."""

    def __init__(self, loop: Repeat, slots: Slots, cuts: Iterable[slice], values: SliceValues = TREES) -> None:
        super().__init__(replace(loop, body=_defer_host_ops(loop.body)), slots, cuts, values=values)

    def advance(self, turns: list[Iterator[Node]], run: Run) -> Iterator[Node]:
        """Let slices take turns: each acts when its last step is over, and then begins its next step."""
        running = list(range(len(turns)))
        while running:
            for k in list(running):
                yield from self.wait_for_step(k)
                for node in turns[k]:
                    if is_step(node):
                        yield from self.begin_step(k, node.nodes, run)
                        break
                    yield for_slice(node, self.slices[k])
                else:
                    running.remove(k)

    def begin_step(self, k: int, nodes: tuple[Node, ...], run: Run) -> Iterable[Node]:
        """Begin the host Ops of a slice, after those that were begun before; do not wait for them."""
        raise NotImplementedError

    def wait_for_step(self, k: int) -> Iterable[Node]:
        """Wait until the host Ops of a slice that were begun last are done, if any were."""
        raise NotImplementedError


class ThreadedLoop(DoubleBufferedLoop):
    """Slices that an executor steps."""

    def __init__(self, loop: Repeat, vector: DoubleBufferedVector, slots: Slots, executor: Executor) -> None:
        super().__init__(loop, slots, vector.cuts)
        for part, half in zip(self.slices, vector.parts, strict=True):
            part.slots["env_state"] = half
        self._executor = executor
        self._stepping: dict[int, Future[None]] = {}

    def advance(self, turns: list[Iterator[Node]], run: Run) -> Iterator[Node]:
        """Let slices take turns."""
        try:
            yield from super().advance(turns, run)
        except BaseException:
            wait(self._stepping.values())  # environments are not closed while they step
            raise

    def begin_step(self, k: int, nodes: tuple[Node, ...], run: Run) -> Iterable[Node]:
        """Submit host Ops to the executor."""
        self._stepping[k] = self._executor.submit(run, nodes, self.slices[k].slots)
        return ()

    def wait_for_step(self, k: int) -> Iterable[Node]:
        """Wait for the executor."""
        if k in self._stepping:
            self._stepping[k].result()
        return ()


def is_step(node: Node) -> TypeGuard[Deferred]:
    """Whether a node is a run of host Ops that was deferred."""
    return isinstance(node, Deferred) and all(_on_host(op) for op in node.nodes)


def _defer_host_ops(body: tuple[Node, ...]) -> tuple[Node, ...]:
    """Defer every run of host Ops as one, so that threads are changed as rarely as possible."""
    out: list[Node] = []
    for on_host, run in itertools.groupby(body, _on_host):
        nodes = tuple(run)
        out += (Deferred(nodes),) if on_host else nodes
    return tuple(out)


def _on_host(node: Node) -> bool:
    return isinstance(node, Op) and node.kind == HOST
