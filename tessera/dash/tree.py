"""The folder that is served: runs in it, and their files, opened without following any link below it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tessera.errors import TesseraError

RUN_ENTRIES = frozenset(("plan.json", "metrics.jsonl"))
"""A folder that holds one of these is a run's."""
NOT_SEARCHED = frozenset(("checkpoints", "best", "logs", "live", "videos"))
"""Folders of a run that hold no runs."""
DEEPEST = 6
MOST_FOLDERS = 20_000
"""Folders that a search for runs looks into."""
MOST_RUNS = 2000
MOST_BYTES = 8 << 20
"""Of a file that is read as a whole, if nothing else is said: ours are far smaller."""
GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ESTALE,
        errno.ENXIO, errno.ENODEV)  # fmt: skip
"""What is not there, what is a link or no plain file, and what may not be read are all the same to a browser."""


class RequestRefused(TesseraError):
    """A request that is not answered."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        """Status of the HTTP answer."""


class FoundRuns(NamedTuple):
    """Runs below a folder."""

    names: list[str]
    left_out: int
    """Runs that are not among them: there are too many, or their names are not text."""


class Tree:
    """A folder and what is below it. Every name comes from outside and is checked here."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def runs(self) -> FoundRuns:
        """All runs, by name."""
        found: list[str] = []
        left_out = 0
        budget = [MOST_FOLDERS]
        for name in self._search((), budget):
            if not name.isprintable() or len(found) >= MOST_RUNS:
                left_out += 1
            else:
                found.append(name)
        return FoundRuns(sorted(found), left_out)

    def _search(self, parts: tuple[str, ...], budget: list[int]) -> Iterator[str]:
        budget[0] -= 1
        if budget[0] < 0:
            return
        try:
            with self._folder(parts) as handle, os.scandir(handle) as entries:
                inside = [(e.name, e.is_dir(follow_symlinks=False)) for e in entries]
        except OSError:
            return
        passed_over: frozenset[str] = frozenset()
        if any(name in RUN_ENTRIES for name, _ in inside):
            yield "/".join(parts) or "."
            passed_over = NOT_SEARCHED
        if len(parts) < DEEPEST:
            for name, is_folder in inside:
                if is_folder and name not in passed_over and not name.startswith("."):
                    yield from self._search((*parts, name), budget)

    def is_there(self, name: str) -> bool:
        """Whether there is a folder of this name."""
        try:
            with self._folder(parts_of(name)):
                return True
        except OSError:
            return False

    def open(self, name: str, *inside: str) -> int | None:
        """The descriptor of a plain file of a run; None if there is none that may be read."""
        for part in inside:
            check_part(part)
        try:
            with self._folder((*parts_of(name), *inside[:-1])) as folder:
                if not stat.S_ISREG(os.stat(inside[-1], dir_fd=folder, follow_symlinks=False).st_mode):
                    return None  # to open a socket fails, and a device may take that as an order
                descriptor = os.open(inside[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        except OSError as error:
            if error.errno in GONE:
                return None
            raise
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # it may have been replaced meanwhile
            return descriptor
        os.close(descriptor)
        return None

    def stat(self, name: str, *inside: str) -> os.stat_result | None:
        """Facts of a file of a run, which is not opened."""
        try:
            with self._folder((*parts_of(name), *inside[:-1])) as folder:
                return os.stat(inside[-1], dir_fd=folder, follow_symlinks=False)
        except OSError:
            return None

    def read(self, name: str, *inside: str, at_most: int = MOST_BYTES) -> bytes | None:
        """The content of a file of a run; None if there is none, or one that is far too large."""
        descriptor = self.open(name, *inside)
        if descriptor is None:
            return None
        if os.fstat(descriptor).st_size > at_most:
            os.close(descriptor)
            return None
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(at_most + 1)  # it may have grown
        return data if len(data) <= at_most else None

    def files(self, name: str, *inside: str) -> dict[str, int]:
        """Plain files in a folder of a run, and their bytes; hidden ones are not whole yet."""
        try:
            with self._folder((*parts_of(name), *inside)) as folder, os.scandir(folder) as entries:
                plain = [e for e in entries if e.is_file(follow_symlinks=False) and not e.name.startswith(".")]
                return {e.name: e.stat(follow_symlinks=False).st_size for e in plain if e.name.isprintable()}
        except OSError:
            return {}

    def folders(self, name: str) -> list[str]:
        """Folders in a folder."""
        try:
            with self._folder(parts_of(name)) as folder, os.scandir(folder) as entries:
                return [e.name for e in entries if e.is_dir(follow_symlinks=False) and e.name.isprintable()]
        except OSError:
            return []

    @contextmanager
    def _folder(self, parts: tuple[str, ...]) -> Iterator[int]:
        """A handle of a folder below the root, reached one step after the other."""
        handle = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for part in parts:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=handle)
                os.close(handle)
                handle = inner
            yield handle
        finally:
            os.close(handle)


def is_run(folder: Path) -> bool:
    """Whether a folder is a run's own, and not one with runs in it."""
    return any((folder / name).exists() for name in RUN_ENTRIES)


def parts_of(name: str) -> tuple[str, ...]:
    """The folders that a run's name leads through; a name that could lead elsewhere is refused."""
    if name == ".":
        return ()
    parts = tuple(name.split("/"))
    for part in parts:
        check_part(part)
    return parts


def check_part(part: str) -> None:
    """Refuse what is no plain name of a file or folder."""
    if part in ("", ".", "..") or "/" in part or "\0" in part or not part.isprintable():
        raise RequestRefused(404, "there is no such run or file: names are those that /api/runs lists")
