"""Files of a run folder: written atomically and never through links, read only if they are plain files."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from tessera.errors import TesseraError

MAX_JSON = 64 << 20
"""Bytes of a JSON file that are read: ours are far smaller."""


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a kill leaves either the old file or the new one."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace a file as `write_bytes` does."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes, durable: bool = True) -> None:
    """Replace a file at once; a link of this name is replaced, not followed.

    If it is to be `durable`, it is on the disk when this returns, and outlives a power cut.
    """
    draft = path.name + ".tmp"
    with _opened_folder(path.parent) as folder:
        try:
            with _new_file(draft, folder) as file:
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            os.replace(draft, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft, dir_fd=folder)
            raise
        if durable:
            os.fsync(folder)


@contextlib.contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """A hidden name beside a file, of the same ending, to write what gets the file's own name once it is whole."""
    draft = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield draft
        os.replace(draft, path)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def open_to_append(path: Path) -> int:
    """Open a plain file for appending: its descriptor. A link, symbolic or hard, is refused."""
    with _opened_folder(path.parent) as folder:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(path.name, flags, 0o666, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise _not_plain(path) from None
            raise
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        raise _not_plain(path)
    return descriptor


def read_text(path: Path, at_most: int | None = None) -> str:
    """Read a plain file; a pipe or a device, which might never end, is refused."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise TesseraError(f"{path} is not a plain file: a run folder holds no pipes, devices or folders there")
        if at_most is not None and found.st_size > at_most:
            raise TesseraError(f"{path} is damaged: it has {found.st_size:,} bytes, at most {at_most:,} are expected")
        return file.read().decode()


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        data = json.loads(read_text(path, MAX_JSON))
    except (ValueError, RecursionError) as error:
        raise TesseraError(f"{path} is damaged ({error}): it is not JSON") from error
    except OSError as error:
        raise TesseraError(f"{path} cannot be read ({error.strerror})") from error
    if not isinstance(data, dict):
        raise TesseraError(f"{path} is damaged: it holds no JSON object")
    return data


def refuse_links(folder: Path) -> None:
    """Refuse a folder with a link anywhere inside, through which writing and deleting could reach other files."""
    for where, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if os.path.islink(os.path.join(where, name)):
                raise TesseraError(
                    f"{os.path.join(where, name)} is a symbolic link, and nothing is written through links: put the "
                    "file or folder itself there, or choose another --run-dir"
                )


def private_folder(path: Path) -> Path:
    """Make a folder that only this user can enter; one that is another's, a link, or open to others is refused."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise TesseraError(f"{path} is a link or belongs to another user, who could read and change what is put there")
    if found.st_mode & 0o077:
        path.chmod(0o700)
    return path


@contextlib.contextmanager
def _opened_folder(path: Path) -> Iterator[int]:
    """A handle of a folder: what is opened relative to it stays in it, whatever happens to its name."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield handle
    finally:
        os.close(handle)


def _new_file(name: str, folder: int) -> IO[bytes]:
    """Make a file that was not there; one that a kill has left, or a link, is removed."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    return os.fdopen(os.open(name, flags, 0o666, dir_fd=folder), "wb")


def _not_plain(path: Path) -> TesseraError:
    return TesseraError(f"{path} is a link or no plain file, and nothing is written through it: remove it")
