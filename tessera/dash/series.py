"""metrics.jsonl as columns: a small file is read whole, of a huge one evenly spaced blocks, then what is appended."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from tessera.dash.columns import Columns
from tessera.dash.tails import Opener, Place, rows_of

CHUNK = 1 << 21
"""Bytes that are read at a time."""
SMALLEST_BLOCK, LARGEST_BLOCK = 1 << 13, 1 << 16
"""Bytes of one block of a file that is too large to be read whole."""
ENOUGH = 1000
"""Rows that are worth being added to columns."""
WHOLE = 32 << 20
"""Bytes that are read of one file at most; when curves of many are asked for, they share twice as many."""
MOST_BYTES = 100 << 20
"""Bytes of columns that are kept of all files together."""


class Series:
    """The columns of one file, brought up to date whenever they are asked for."""

    def __init__(self, opener: Opener) -> None:
        self._open = opener
        self._lock = threading.Lock()
        self._begin_anew(0)

    def _begin_anew(self, budget: int) -> None:
        self.columns = Columns()
        self._place = Place()
        self._budget = budget
        self.is_sampled = False
        """Whether some rows have been passed over."""

    def refresh(self, budget: int = WHOLE) -> Columns:
        """The columns as the file has them now; at most `budget` bytes are read."""
        with self._lock:
            descriptor = self._open()
            if descriptor is None:
                self._begin_anew(budget)
                return self.columns
            try:
                too_coarse = self.is_sampled and budget >= 4 * self._budget
                if too_coarse or not self._place.goes_on(descriptor):
                    self._begin_anew(budget)
                self._read(descriptor, budget)
            finally:
                os.close(descriptor)
            return self.columns

    def _read(self, descriptor: int, budget: int) -> None:
        size = os.fstat(descriptor).st_size
        begin = self._place.offset
        if size - begin > budget:
            self.is_sampled, self._budget = True, budget
            block = min(max(budget // 512, SMALLEST_BLOCK), LARGEST_BLOCK)
            count = max(1, budget // block)
            spacing = (size - begin - block) / count
            rows: list[dict[str, Any]] = []
            for k in range(count):
                at = begin + int(k * spacing)
                rows += rows_of(os.pread(descriptor, block, at), at > 0)
                if len(rows) >= ENOUGH or k == count - 1:
                    self.columns.extend(rows, spacing / block)
                    rows = []
            begin = size - block
            self._append(descriptor, begin, True)
        else:
            self._append(descriptor, begin, False)

    def _append(self, descriptor: int, begin: int, is_cut: bool) -> None:
        """Read whole lines from `begin` to the end; the first is left out if it is cut."""
        while data := os.pread(descriptor, CHUNK, begin):
            end = data.rfind(b"\n") + 1
            if end:
                self.columns.extend(list(rows_of(data[:end], is_cut)))
                begin += end
                is_cut = False
                self._place.keep(descriptor, begin)
            elif len(data) == CHUNK:  # a line that is longer than any row
                begin += len(data)
                is_cut = True
            else:
                break


class AllSeries:
    """The columns of many files. Those that nobody has asked for in a while are dropped when they need much room."""

    def __init__(self, opener_of: Callable[[str], Opener]) -> None:
        self._opener_of = opener_of
        self._kept: OrderedDict[str, Series] = OrderedDict()
        self._lock = threading.Lock()

    def columns(self, name: str, share: int = 1) -> Columns:
        """The columns of a run, when those of `share` runs are asked for together."""
        with self._lock:
            series = self._kept.setdefault(name, Series(self._opener_of(name)))
            self._kept.move_to_end(name)
        found = series.refresh(WHOLE if share == 1 else min(WHOLE, 2 * WHOLE // share))
        with self._lock:
            total = sum(each.columns.nbytes for each in self._kept.values())
            while total > MOST_BYTES and len(self._kept) > 1:
                total -= self._kept.popitem(last=False)[1].columns.nbytes
        return found
