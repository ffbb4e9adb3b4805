"""Shared memory between the processes of one Linux machine: arena, rings of messages, wake-ups, a Hogwild vector.

Nothing here is locked. Every word has one process that writes it, or may lose a write without harm; a process publishes
with its last store. All counters are in the arena, so a restarted process continues where its predecessor stopped.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import math
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from tessera.errors import TesseraError
from tessera.support.machine import available_memory

ALIGNMENT = 64
"""Bytes of a cache line: what two processes write must not share one."""

_WORDS = ALIGNMENT // 8
"""Counters of 64 bits in a cache line; each counter has a line of its own."""

_FUTEX = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine)
_MEMBARRIER = {"x86_64": 324, "aarch64": 283}.get(os.uname().machine, -1)
_FUTEX_WAIT, _FUTEX_WAKE, _EVERYONE = 0, 1, 2**31 - 1
_syscall = ctypes.CDLL(None).syscall

_WEAK = os.uname().machine != "x86_64"
"""Whether this processor may reorder two loads or two stores; x86-64 does neither, so it needs no fences."""

SPIN_SECONDS = 50e-6
"""How long a wait spins before it sleeps: about twice what it costs to wake a process on an idle core."""
_SLOW_YIELD_SECONDS = 5e-6
"""A yield of the core takes 0.6 us if no other process wants it, and several if another process ran meanwhile."""
_FEWEST_SKIPS, _MOST_SKIPS = 16, 1024
"""Waits that sleep at once after another process wanted the core; doubled each time in a row."""


class _Timespec(ctypes.Structure):
    """The kernel's timeout."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def _fence() -> None:
    """Order memory accesses before this against those after it: Python has no fence, but this call begins with one."""
    _syscall(_MEMBARRIER, 2, 0, 0)


def fence_if_weak() -> None:
    """Keep the order of stores, and of loads, before and after this call, as other processes see them."""
    if _WEAK:
        _fence()


class Allocator:
    """Hands out aligned offsets, before the memory exists."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes handed out so far: the size that the arena needs."""

    def take(self, nbytes: int) -> int:
        """Reserve bytes; the offset at which they begin."""
        offset = self.size
        self.size += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return offset


class Memory(Protocol):
    """A block of memory, whoever may map it."""

    def array(self, offset: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """View a part of the memory as an array."""


class Arena:
    """One block of zeroed shared memory without a name: the kernel frees it with the last process that holds it."""

    def __init__(self, size: int) -> None:
        available = available_memory()
        if size > available:
            raise TesseraError(
                f"{size / 2**20:,.0f} MB of shared memory asked, {available / 2**20:,.0f} MB available: "
                "use fewer replicas, shorter unrolls or fewer environments, or free memory"
            )
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("tessera")
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.ftruncate(fd, max(size, 1))
        self._open(fd, size)

    @classmethod
    def attach(cls, pid: int, fd: int, size: int) -> Arena:
        """Open the arena of another living process of the same user."""
        self = cls.__new__(cls)
        self._open(os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC), size)
        return self

    def _open(self, fd: int, size: int) -> None:
        self.size = size
        self.handle = (os.getpid(), fd, size)
        """Arguments of `attach` in another process, while this one lives and holds the arena."""
        self._fd = fd
        self._map: mmap.mmap | None = mmap.mmap(fd, max(size, 1))
        self._thread_lock = threading.Lock()

    def array(self, offset: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """View a part of the memory as an array."""
        if self._map is None:
            raise ValueError("the arena is closed")
        return np.ndarray(shape, dtype, self._map, offset)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other threads and processes out. For a process that dies the kernel unlocks."""
        with self._thread_lock:  # to the kernel all threads of a process are one
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give up this process's hold. Other processes can no longer attach by its handle; views stay valid."""
        if self._map is not None:
            # Unmapping under a view would crash the process, so the mapping goes with its last view.
            self._map = None
            os.close(self._fd)


@dataclass(frozen=True)
class Layout:
    """The arrays of a message, and where each begins."""

    leaves: tuple[tuple[tuple[int, ...], np.dtype], ...]
    """Shape and dtype of each."""

    @classmethod
    def of(cls, leaves: Iterable[Any]) -> Layout:
        """Lay out anything with a shape and a dtype."""
        return cls(tuple((tuple(leaf.shape), np.dtype(leaf.dtype)) for leaf in leaves))

    @cached_property
    def _placed(self) -> tuple[tuple[int, ...], int]:
        allocator = Allocator()
        offsets = tuple(allocator.take(math.prod(shape) * dtype.itemsize) for shape, dtype in self.leaves)
        return offsets, allocator.size

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where each array begins within the message, aligned."""
        return self._placed[0]

    @property
    def nbytes(self) -> int:
        """Bytes of a message, a multiple of the alignment."""
        return self._placed[1]

    def views_in(self, content: np.ndarray) -> list[np.ndarray]:
        """View the arrays of a message in its bytes."""
        pairs = zip(self.leaves, self.offsets, strict=True)
        return [np.ndarray(shape, dtype, content.data, begin) for (shape, dtype), begin in pairs]

    def views(self, memory: Memory, offset: int) -> list[np.ndarray]:
        """View the arrays of a message that begins at an offset of a memory."""
        pairs = zip(self.leaves, self.offsets, strict=True)
        return [memory.array(offset + begin, shape, dtype) for (shape, dtype), begin in pairs]


class Ring:
    """Messages of a fixed size from one writer to several readers, in some slots; zeroed memory is an empty ring.

    As a queue, the writer asks `can_send` first, and every reader takes each message with `peek` and `release`. As a
    register of at least two slots, the writer overwrites the oldest message, and readers ask for the `newest`.
    """

    def __init__(self, arena: Arena, offset: int, layout: Layout, slots: int, readers: int) -> None:
        if slots < 1:
            raise ValueError("a ring has at least one slot")
        self.layout, self.slots, self.readers = layout, slots, readers
        # One line for the head, one for each reader's tail, one for each slot's sequence number and version.
        lines = 1 + readers + slots
        self._words = arena.array(offset, (lines * _WORDS,), np.int64).data
        self._tails = range(_WORDS, (1 + readers) * _WORDS, _WORDS)
        self._marks = (1 + readers) * _WORDS
        begins = [offset + lines * ALIGNMENT + slot * layout.nbytes for slot in range(slots)]
        self._own = [
            [(view, *leaf) for view, leaf in zip(layout.views(arena, begin), layout.leaves, strict=True)]
            for begin in begins
        ]
        self._views = [layout.views(arena, begin) for begin in begins]
        for view in (view for views in self._views for view in views):
            view.flags.writeable = False

    @staticmethod
    def nbytes(layout: Layout, slots: int, readers: int) -> int:
        """Bytes that a ring takes in the arena."""
        return (1 + readers + slots) * ALIGNMENT + slots * layout.nbytes

    @property
    def sent(self) -> int:
        """Messages published so far, which is the number of the next one."""
        return self._words[0]

    def can_send(self) -> bool:
        """Whether every reader has released the message that the next one overwrites."""
        words = self._words
        behind = words[0] - self.slots
        for tail in self._tails:  # noqa: SIM110 - a generator takes more than twice as long, on every message
            if words[tail] <= behind:
                return False
        return True

    def write(self, leaves: Iterable[Any], version: int = 0) -> None:
        """Copy a message into the next slot and publish it. Only the writer calls this."""
        words = self._words
        number = words[0]
        slot = number % self.slots
        mark = self._marks + slot * _WORDS
        # Zero first: a reader that copies from this slot sees that it changes. The head last: a writer that dies in
        # between has published nothing, and its successor writes the same slot again.
        words[mark] = 0
        if _WEAK:
            _fence()
        for (view, shape, dtype), leaf in zip(self._own[slot], leaves, strict=True):
            if leaf.shape != shape or leaf.dtype != dtype:
                raise ValueError(f"a leaf is {leaf.dtype}{leaf.shape}, the ring carries {dtype}{shape}")
            view[...] = leaf
        words[mark + 1] = version
        if _WEAK:
            _fence()
        words[mark] = number + 1
        if _WEAK:
            _fence()
        words[0] = number + 1

    def taken(self, reader: int) -> int:
        """Messages that a reader has released, which is the number of its next one."""
        return self._words[self._tails[reader]]

    def waiting(self, reader: int) -> int:
        """Messages that have arrived and that a reader has not released."""
        words = self._words
        return words[0] - words[self._tails[reader]]

    def version(self, number: int) -> int:
        """The version of a message that is still in the ring."""
        return self._words[self._marks + number % self.slots * _WORDS + 1]

    def peek(self, reader: int, ahead: int = 0) -> list[np.ndarray] | None:
        """View the next message of a queue, or a later one; None if it has not arrived.

        The views are valid until the message is released: copy what outlives that. Copy what is given to jax, too: on a
        CPU it may keep aligned arrays instead of copying them.
        """
        words = self._words
        number = words[self._tails[reader]] + ahead
        if number >= words[0]:
            return None
        if _WEAK:
            _fence()
        return self._views[number % self.slots]

    def release(self, reader: int, count: int = 1) -> None:
        """Give a reader's next messages back to the writer, after the last use of their views."""
        if _WEAK:
            _fence()
        self._words[self._tails[reader]] += count

    def skip(self, reader: int) -> None:
        """Release everything that has arrived."""
        words = self._words
        words[self._tails[reader]] = words[0]

    def at(self, number: int) -> tuple[int, int, list[np.ndarray]] | None:
        """Copy a message: number, version, arrays. None if it has not arrived or was overwritten, even meanwhile."""
        words = self._words
        mark = self._marks + number % self.slots * _WORDS
        if not 0 <= number < words[0] or words[mark] != number + 1:
            return None
        if _WEAK:
            _fence()
        version = words[mark + 1]
        copies = [view.copy() for view in self._views[number % self.slots]]
        if _WEAK:
            _fence()
        # The number is the same: the writer had not touched the slot when the last byte was copied.
        return (number, version, copies) if words[mark] == number + 1 else None

    def newest(self) -> tuple[int, int, list[np.ndarray]] | None:
        """Copy the newest message: number, version, arrays. None if nothing was ever written."""
        words = self._words
        while head := words[0]:
            found = self.at(head - 1)
            # With two slots or more, a message is overwritten only by a writer that has published another since, so
            # there is a newer one to copy. With one slot the writer may have died, and a retry would never end.
            if found is not None or words[0] == head:
                return found
        return None


class Bell:
    """Wake-ups: a word for each replica, which other replicas change to make it look again.

        seen = bell.look()
        if nothing_to_do():
            bell.wait(seen, timeout=1.0)

    Each replica makes one, with its own number; all of its threads and signal handlers may use it.
    """

    _SENDER_SHIFT = 20
    _COUNT_MASK = (1 << _SENDER_SHIFT) - 1

    def __init__(self, arena: Arena, offset: int, replicas: int, me: int) -> None:
        if replicas > 2 ** (32 - self._SENDER_SHIFT):
            raise ValueError(f"{replicas} replicas are more than a bell can tell apart")
        array = arena.array(offset, (replicas * 2 * _WORDS,), np.uint32)
        self._words = array.data
        self._me = me
        self._line = me * 2 * _WORDS
        address = array.ctypes.data
        self._addresses = [ctypes.c_void_p(address + replica * ALIGNMENT) for replica in range(replicas)]
        # Threads of a process that died may have stored their counts out of order: begin well past the last.
        self._counts = itertools.count(self._words[self._line + 1] + 1000)
        self._skips = 0
        self._next_skips = _FEWEST_SKIPS

    @staticmethod
    def nbytes(replicas: int) -> int:
        """Bytes that a bell takes in the arena."""
        return replicas * ALIGNMENT

    def ring(self, replica: int) -> None:
        """Make a replica look again, now or when it next waits; call it after publishing."""
        words = self._words
        # There is no atomic addition, so two ringers may overwrite each other. That is harmless as long as the word
        # never returns to a value that was seen: each value carries its sender and the sender's own count. The count
        # is in the arena too, because a restarted sender must not begin at zero.
        count = next(self._counts) & self._COUNT_MASK
        words[self._line + 1] = count
        if _WEAK:
            _fence()
        words[replica * 2 * _WORDS] = self._me << self._SENDER_SHIFT | count
        if _FUTEX:
            _syscall(_FUTEX, self._addresses[replica], _FUTEX_WAKE, _EVERYONE)

    def look(self) -> int:
        """Read this replica's word. Read it before the conditions, so that no later change is missed."""
        seen = self._words[self._line]
        if _WEAK:
            _fence()
        return seen

    def wait(self, seen: int, timeout: float | None = None) -> bool:
        """Wait for a ring since `look`, a signal or the timeout; whether there was a ring."""
        words, line = self._words, self._line
        if words[line] == seen and (timeout is None or timeout > 0) and not self._spin(seen):
            (self._sleep if _FUTEX else self._nap)(seen, timeout)
        return words[line] != seen

    def _spin(self, seen: int) -> bool:
        """Spin for a short while, unless other processes want this core: the wait may be for one of them."""
        if self._skips:
            self._skips -= 1
            return False
        words, line = self._words, self._line
        now = time.perf_counter()
        end = now + SPIN_SECONDS
        while words[line] == seen:
            before = now
            os.sched_yield()
            now = time.perf_counter()
            lost = now - before
            if lost > SPIN_SECONDS or (lost > _SLOW_YIELD_SECONDS and words[line] == seen):
                # Another process ran, and did not ring. Sleeping is then cheap: the kernel runs a woken process before
                # one that never waits. Yielding to that one costs whole time slices.
                self._skips = self._next_skips
                self._next_skips = min(2 * self._next_skips, _MOST_SKIPS)
                return words[line] != seen
            if now > end:
                return words[line] != seen
        self._next_skips = _FEWEST_SKIPS
        return True

    def _sleep(self, seen: int, timeout: float | None) -> None:
        """Wait in the kernel, which compares the word again before it sleeps: no earlier ring is lost."""
        end = math.inf if timeout is None else time.perf_counter() + timeout
        woken = 0
        # A ringer changes the word first and wakes second: a look in between is followed by a wake for what it saw.
        while woken == 0 and self._words[self._line] == seen and (left := end - time.perf_counter()) > 0:
            limit = None if math.isinf(left) else ctypes.byref(_Timespec(int(left), int(left % 1 * 1e9)))
            woken = _syscall(_FUTEX, self._addresses[self._me], _FUTEX_WAIT, seen, limit)

    def _nap(self, seen: int, timeout: float | None) -> None:
        """Wait where the kernel has no futex."""
        end = math.inf if timeout is None else time.perf_counter() + timeout
        step = SPIN_SECONDS
        while self._words[self._line] == seen and (left := end - time.perf_counter()) > 0:
            time.sleep(min(step, left))
            step = min(2 * step, 1e-3)


class SharedVector:
    """Numbers that several processes add to without a lock, as in Hogwild."""

    def __init__(self, memory: Memory, offset: int, size: int, dtype: Any = np.float32) -> None:
        self._values = memory.array(offset, (size,), dtype)

    @staticmethod
    def nbytes(size: int, dtype: Any = np.float32) -> int:
        """Bytes that a vector takes in the arena."""
        return size * np.dtype(dtype).itemsize

    def add(self, delta: np.ndarray) -> None:
        """Add in place. An addition to an element is lost only if another falls into the same few instructions."""
        np.add(self._values, delta, out=self._values)

    def read(self) -> np.ndarray:
        """Copy the numbers; an addition in progress may be in some of them and not in others."""
        return self._values.copy()

    def write(self, values: np.ndarray) -> None:
        """Set the numbers, before any process adds."""
        np.copyto(self._values, values)
