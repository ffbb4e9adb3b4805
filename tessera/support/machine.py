"""Facts about this machine and this process: cores, memory, when the process began."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from pathlib import Path


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


CGROUP = Path("/sys/fs/cgroup")
"""Where the limits of a container are; in version 1 in a folder `memory`."""


def available_memory() -> int:
    """Bytes that a process can take without swapping, as the kernel estimates, and within its container's limit."""
    with open("/proc/meminfo") as lines:
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return min([free, *_left_in_container()])


def _left_in_container() -> list[int]:
    """What the container that this process is in may still take, if it has a limit."""
    for limit, used, cache in (
        (CGROUP / "memory.max", CGROUP / "memory.current", "inactive_file"),
        (CGROUP / "memory/memory.limit_in_bytes", CGROUP / "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            most, now = limit.read_text().strip(), int(used.read_text())
            facts = dict(line.split() for line in (limit.parent / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        if most.isdigit():  # "max" is no limit
            return [max(0, int(most) - now + int(facts.get(cache, 0)))]  # files in memory can be dropped
    return []


def peak_memory(process: int | str = "self") -> int:
    """The most bytes of memory that a process has held so far."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def forget_peak_memory(process: int | str = "self") -> None:
    """Have `peak_memory` of a process begin anew with what it holds now, where the system allows it."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{process}/clear_refs").write_text("5")


def return_freed_memory() -> None:
    """Give memory that this process has freed back to the system: compiling leaves hundreds of megabytes behind."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


def process_start() -> float:
    """When this process began, in seconds since the epoch; now, where the system does not say."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return time.time() - (uptime - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return time.time()
