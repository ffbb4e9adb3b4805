"""How much memory a process has held, and what it gives back."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from tessera.support.machine import forget_peak_memory, peak_memory, return_freed_memory

MEGABYTES = 2**20


def held_now() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def test_the_peak_begins_anew_once_it_is_forgotten():
    large = np.ones(100 * MEGABYTES, np.uint8)
    with_it = peak_memory()
    del large
    assert peak_memory() > with_it - 10 * MEGABYTES  # the kernel counts in batches
    forget_peak_memory()
    assert peak_memory() < with_it - 50 * MEGABYTES


def test_freed_memory_goes_back_to_the_system_although_some_behind_it_is_in_use():
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "malloc_trim"):
        pytest.skip("only glibc keeps it")
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    size, count = 64 * 1024, 1600  # small enough not to be mapped one by one
    blocks = [libc.malloc(size) for _ in range(count)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    last = libc.malloc(size)
    for block in blocks:
        libc.free(block)
    before = held_now()
    return_freed_memory()
    libc.free(last)
    assert held_now() < before - 50 * MEGABYTES
