"""The local engine: every replica is a process of this machine, and channels are rings in shared memory."""

from __future__ import annotations

import itertools
import os
from dataclasses import fields

from tessera.channels.rings import lay_out
from tessera.channels.shared_memory import Arena, Bell
from tessera.channels.shared_tree import SharedTree
from tessera.engines.driver.pool import PooledProcess, assign, start_process, wait_for_any
from tessera.engines.driver.process_engine import ProcessEngine
from tessera.engines.map_reduce.processes import map_on_processes
from tessera.engines.replica.driver_link import LocalJob, local_control
from tessera.engines.replica.job import Job
from tessera.errors import TesseraError
from tessera.graph.plan import Plan
from tessera.program.agents import own_training
from tessera.program.initial import initial_shapes
from tessera.program.shapes import shared_shape
from tessera.support.machine import available_memory, cores
from tessera.support.trees import bytes_of

PROCESS_BYTES = 300 * 2**20
"""Memory of a small process: Python, JAX and its programs."""


def check_memory(processes: int, shared: int, held: int) -> None:
    """Refuse what does not fit into memory, before anything starts; replicas hold `held` bytes of arrays."""
    asked, there = processes * PROCESS_BYTES + shared + held, available_memory()
    if asked > there:
        raise TesseraError(
            f"{processes} processes, {held / 2**20:,.0f} MB of replays and other arrays in them and "
            f"{shared / 2**20:,.0f} MB of shared memory take at least {asked / 2**30:,.1f} GB, available: "
            f"{there / 2**30:,.1f} GB; use fewer replicas, a smaller --capacity, or batch them (Fragment.processes)"
        )


class LocalEngine(ProcessEngine):
    """Runs a plan on processes of this machine."""

    name = "local"
    map_items = staticmethod(map_on_processes)

    def check(self) -> None:
        """Lay out the shared memory, and refuse what does not fit."""
        plan = self.plan
        shared = shared_shape(self.shapes, plan.carries) if plan.exchange == "shared" else None
        self.layout = lay_out(plan, self.link_specs, shared)
        check_memory(self.layout.processes, self.layout.size, self._held())

    def _held(self) -> int:
        """Bytes of the arrays that all replicas on processors begin with, replays above all."""
        sizes: dict[tuple[int, int, int], int] = {}
        total = 0
        for i, number, _ in self.plan.places:
            placed = self.plan.fragments[i]
            if placed.platform != "cpu":
                continue
            alike = (i, len(placed.held("env")[number]), len(placed.held("grad")[number]))
            if alike not in sizes:
                mine = own_training(self.training, self.plan, i, number)
                sizes[alike] = bytes_of(initial_shapes(mine, self.plan, i, number))
            total += sizes[alike]
        return total

    def set_up(self, jobs: list[Job]) -> None:
        """Make the shared memory."""
        self.arena = Arena(self.layout.size)
        self.controls = [local_control(self.arena, self.layout, k) for k in range(len(jobs))]
        shared = {"layout": self.layout, "arena": self.arena.handle}
        self.jobs = [LocalJob(**{f.name: getattr(job, f.name) for f in fields(job)}, **shared) for job in jobs]  # type: ignore[arg-type]
        self.launcher = LocalLauncher(self.plan, Bell(self.arena, self.layout.bells, len(jobs) + 1, len(jobs)))

    def tear_down(self) -> None:
        """Give the memory back."""
        self.arena.close()

    def shared(self) -> list[SharedTree]:
        """Values that peers share, as the first of them reads them."""
        return [SharedTree(self.arena, placed, 0) for placed in self.layout.trees.values()]


class LocalLauncher:
    """Processes from this machine's pool."""

    def __init__(self, plan: Plan, bell: Bell) -> None:
        self._plan, self._bell = plan, bell
        self._cores = cores_of_places(plan)

    def start(self, job: Job) -> PooledProcess:
        """A process with a job."""
        member = start_process(self._plan.fragments[job.fragment], self._cores[job.place])
        assign(member, job)
        return member

    def wait(self, hands: list[PooledProcess], seconds: float) -> None:
        """Wait until one of them has sent a message or has died, or the seconds are over."""
        wait_for_any(hands, seconds)

    def wake(self, place: int) -> None:
        """Make the replica of a place read its control words."""
        self._bell.ring(place)


def cores_of_places(plan: Plan) -> list[tuple[int, ...]]:
    """Cores of each replica: its own, or those that no replica has for itself; () for all."""
    there = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(cores()))
    counts = [count for f in plan.fragments for count in f.cores or (0,) * f.replicas]
    edges = [0, *itertools.accumulate(counts)]
    shared = tuple(there[edges[-1] :]) if edges[-1] else ()
    return [tuple(there[a:b]) or shared for a, b in itertools.pairwise(edges)]
