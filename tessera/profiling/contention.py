"""How much slower threads get beside others, on this machine: cores that share caches, or are halves of one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np

from tessera.channels.packing import pack
from tessera.engines.driver.pool import PooledProcess, assign, start_process, wait_for_any
from tessera.graph.plan import Placement
from tessera.profiling.core_speed import turns_per_microsecond

SECONDS = 0.06
"""How long each number of threads is timed, each time."""
ROUNDS = 7
"""Times that each number is timed, in turn: others may take cores for a second."""
MOST_TIMED = 8
"""Numbers of threads that are timed; others lie between them."""
PATIENCE = 20.0
"""Seconds in which a process must have answered."""


@dataclass(frozen=True)
class ContentionJob:
    """The job of a process that works on request, and answers with how much it got done."""

    def work(self, connection: Connection) -> None:
        """Serve until the process is ended."""
        connection.send_bytes(pack({"kind": "waits"}, {}))
        while True:
            connection.recv_bytes()
            connection.send_bytes(pack({"kind": "worked", "rate": turns_per_microsecond(SECONDS)}, {}))


def measure_slowdown(cores: int, tell: Callable[[str], None]) -> tuple[float, ...]:
    """For k = 1, 2, ... twice the cores: what a thread gets done in a second of a core, relative to a thread alone."""
    placed = Placement(operators=("env",), groups=((0,),), threads=1)
    processes = [start_process(placed, (), main=False) for _ in range(2 * cores)]
    try:
        for process in processes:
            assign(process, ContentionJob())
        _answers(processes, "waits")
        timed = sorted({round(k) for k in np.linspace(1, 2 * cores, min(MOST_TIMED, 2 * cores))})
        tell(f"up to {2 * cores} threads at once")
        rounds = np.array([[_rate(processes[:k]) for k in timed] for _ in range(ROUNDS)])
    finally:
        for process in processes:
            process.kill()
    relative = np.median(rounds / rounds[:, :1], axis=0)
    curve = np.interp(range(1, 2 * cores + 1), timed, relative)
    return tuple(float(min(1.0, x)) for x in curve)


def _rate(processes: list[PooledProcess]) -> float:
    """What each of them gets done while all of them work."""
    for process in processes:
        process.send({"do": "work"})
    return float(np.mean(_answers(processes, "worked")))


def _answers(processes: list[PooledProcess], kind: str) -> list[float]:
    """What each of them says; nothing of one that does not answer."""
    rates: dict[int, float] = {}
    end = time.monotonic() + PATIENCE
    while len(rates) < len(processes) and time.monotonic() < end:
        wait_for_any([p for k, p in enumerate(processes) if k not in rates], 0.2)
        for k, process in enumerate(processes):
            for meta, _ in process.received():
                if meta["kind"] == kind:
                    rates[k] = meta.get("rate", 0.0)
    return list(rates.values()) or [1.0]
