"""Files that grow line by line, read while somebody writes them: whole lines only, and never more than is needed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

from tessera.dash.values import parse

LONGEST_LINE = 1 << 20
"""Bytes of a line; a longer one is passed over."""
NEWEST = 1 << 16
"""Bytes that the newest rows of a file are looked for in."""
MOST_NEW = 4 << 20
"""Bytes that a tail reads at once; what came before them is passed over."""
MARK = 64
"""Bytes before the place where reading goes on: if they have changed, it is another file."""

Opener = Callable[[], int | None]
"""Gives a descriptor of the file, or None."""


class Place:
    """How far a file has been read; a file that was replaced since begins anew."""

    def __init__(self) -> None:
        self.offset = 0
        self._inode = 0
        self._before = b""

    def goes_on(self, descriptor: int) -> bool:
        """Whether this is still the file that was read, or its first sight."""
        found = os.fstat(descriptor)
        if self._inode in (0, found.st_ino) and found.st_size >= self.offset:
            before = os.pread(descriptor, len(self._before), self.offset - len(self._before))
            return before == self._before
        return False

    def keep(self, descriptor: int, offset: int) -> None:
        """Note that all before `offset` has been read."""
        self.offset, self._inode = offset, os.fstat(descriptor).st_ino
        begin = max(0, offset - MARK)
        self._before = os.pread(descriptor, offset - begin, begin)


class Tail:
    """The lines that a file gets from now on."""

    def __init__(self, opener: Opener) -> None:
        self._open = opener
        self._place: Place | None = None
        self.lines()

    def lines(self) -> list[bytes]:
        """Whole lines since the last call. A file that appears is new from its beginning; a replaced one from its end,
        since a run that is resumed writes again what it keeps."""
        descriptor = self._open()
        if descriptor is None:
            self._place = self._place or Place()
            return []
        try:
            if self._place is None or not self._place.goes_on(descriptor):
                self._place = Place()
                self._place.keep(descriptor, end_of_lines(descriptor))
                return []
            size = os.fstat(descriptor).st_size
            begin = max(self._place.offset, size - MOST_NEW)
            data = os.pread(descriptor, size - begin, begin)
            whole = data[: data.rfind(b"\n") + 1]
            if whole:
                passed_over = begin > self._place.offset
                self._place.keep(descriptor, begin + len(whole))
                return whole.splitlines()[1 if passed_over else 0 :]
            return []
        finally:
            os.close(descriptor)


def end_of_lines(descriptor: int) -> int:
    """Where the last whole line of a file ends."""
    end = os.fstat(descriptor).st_size
    lowest = max(0, end - LONGEST_LINE)
    while end > lowest:
        begin = max(lowest, end - NEWEST)
        found = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return end


def newest_rows(opener: Opener, most: int) -> list[dict[str, Any]]:
    """The last rows of a file of JSON lines, read from its end."""
    descriptor = opener()
    if descriptor is None:
        return []
    try:
        end = os.fstat(descriptor).st_size
        for reach in (NEWEST, LONGEST_LINE):
            begin = max(0, end - reach)
            data = os.pread(descriptor, end - begin, begin)
            whole = data[data.find(b"\n") + 1 if begin else 0 : data.rfind(b"\n") + 1]
            rows = (parse(line) for line in reversed(whole.splitlines()))
            found = list(itertools.islice((row for row in rows if isinstance(row, dict)), most))
            if found or begin == 0:
                return found[::-1]
        return []
    finally:
        os.close(descriptor)


def rows_of(data: bytes, is_cut: bool = False) -> Iterator[dict[str, Any]]:
    """Rows of whole lines; if the beginning is cut off, the first line is left out, and so is one without an end."""
    begin = data.find(b"\n") + 1 if is_cut else 0
    if is_cut and not begin:
        return
    for line in data[begin : data.rfind(b"\n") + 1].splitlines():
        row = parse(line) if len(line) <= LONGEST_LINE else None
        if isinstance(row, dict):
            yield row
