"""How busy the cores are, and how much of that is this process and those that it started."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from tessera.support.machine import cores

PROC = Path("/proc")
IDLE = (3, 4)
"""Columns of /proc/stat in which a core does nothing: idle, and waiting for a disk."""
GUEST = 8
"""The first column that is counted in others already."""


@dataclass(frozen=True)
class CoreTimes:
    """Seconds of cores up to a moment."""

    at: float
    """The moment, by the monotonic clock."""
    busy: float
    """In which the cores that this process may use did anything; or others on the same hardware did, in their place."""
    own: float
    """Of this process and those that it started."""


def core_times() -> CoreTimes | None:
    """Core times up to now; None where the system does not tell."""
    try:
        tick = os.sysconf("SC_CLK_TCK")
        return CoreTimes(time.monotonic(), _busy() / tick, sum(map(_used, _family())) / tick)
    except (OSError, ValueError, IndexError):
        return None


def used_by_others(before: CoreTimes, after: CoreTimes) -> float:
    """Cores that other processes kept busy between two moments."""
    others = (after.busy - before.busy) - (after.own - before.own)
    return min(max(others, 0.0) / max(after.at - before.at, 1e-9), float(cores()))


def _busy() -> int:
    """Ticks in which the cores of this process were busy."""
    mine = {f"cpu{k}" for k in os.sched_getaffinity(0)}
    total = 0
    for line in (PROC / "stat").read_text().splitlines():
        name, *columns = line.split()
        if name in mine:
            total += sum(int(x) for k, x in enumerate(columns[:GUEST]) if k not in IDLE)
    return total


def _family() -> list[int]:
    """This process, and all that descend from it."""
    parents: dict[int, list[int]] = {}
    for path in PROC.iterdir():
        if path.name.isdecimal() and (facts := _facts(int(path.name))):
            parents.setdefault(int(facts[1]), []).append(int(path.name))
    found = [os.getpid()]
    for process in found:
        found += parents.get(process, [])
    return found


def _used(process: int) -> int:
    """Ticks of a process, and of those that it has started and that are over; 0 if it is gone."""
    facts = _facts(process)
    return sum(int(x) for x in facts[11:15]) if facts else 0


def _facts(process: int) -> list[str]:
    """What /proc tells of a process, after its name: state, parent, …; nothing if it is gone."""
    try:
        return (PROC / str(process) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
