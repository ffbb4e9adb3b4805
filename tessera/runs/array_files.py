"""Large arrays of a checkpoint: a plain .npy file each, written and read piece by piece."""

from __future__ import annotations

import dataclasses
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from tessera.errors import TesseraError
from tessera.support.streamed_arrays import Piece, StreamedArray

ITEM = "large"
"""Folder of these files in that of a checkpoint."""
NAME = re.compile(r"[0-9]{1,6}\.npy")
"""Files have numbers for names; which array is which, the metadata says."""


class FileArray(StreamedArray):
    """An array in a .npy file."""

    def __init__(self, path: Path, dtype: str) -> None:
        """`dtype` is its name: types that NumPy does not know by itself are saved as whole numbers of their size."""
        self._file = _open_plain(path)
        version = np.lib.format.read_magic(self._file)
        if version != (1, 0):
            raise ValueError(f"{path.name} has version {version} of its format")
        shape, fortran, saved = np.lib.format.read_array_header_1_0(self._file)
        self.shape, self.dtype, self._offset = shape, np.dtype(dtype), self._file.tell()
        if fortran or saved != _on_disk(self.dtype) or len(shape) < 2 or 0 in shape:
            raise ValueError(f"{path.name} is not the array that it should be")
        if os.fstat(self._file.fileno()).st_size != self._offset + self.nbytes:
            raise ValueError(f"{path.name} is cut short or has more bytes than its array")

    def read(self, piece: Piece) -> np.ndarray:
        """Rows of one group."""
        row = self.nbytes // max(1, self.shape[0] * self.shape[1])
        size = (piece.stop - piece.start) * row
        begin = self._offset + (piece.group * self.shape[1] + piece.start) * row
        data = os.pread(self._file.fileno(), size, begin)
        if len(data) != size:
            raise OSError("the file of a large array ends too early")
        return np.frombuffer(data, self.dtype).reshape(piece.stop - piece.start, *self.shape[2:])

    def checksum(self) -> int:
        """CRC-32 of its bytes."""
        found = 0
        for piece in self.pieces():
            found = zlib.crc32(self.read(piece).reshape(-1).view(np.uint8).data, found)
        return found


def write_arrays(folder: Path, arrays: Mapping[str, StreamedArray]) -> tuple[dict[str, Any], dict[str, int]]:
    """Write every array to a file in a new folder: which file and type each has, and their checksums."""
    folder.mkdir()
    listed, checksums = {}, {}
    for number, (path, array) in enumerate(arrays.items()):
        with open(folder / f"{number}.npy", "xb") as file:
            checksums[path] = write_npy(file, array)
            file.flush()
            os.fsync(file.fileno())
        listed[path] = {"file": f"{number}.npy", "dtype": array.dtype.name}
    return listed, checksums


def write_npy(file: IO[bytes], array: StreamedArray) -> int:
    """Write an array as .npy, a piece at a time: the CRC-32 of its bytes."""
    header = {"shape": array.shape, "fortran_order": False, "descr": _on_disk(array.dtype).str}
    np.lib.format.write_array_header_1_0(file, header)
    found = 0
    for piece in array.pieces():
        data = np.ascontiguousarray(array.read(piece)).reshape(-1).view(np.uint8).data
        found = zlib.crc32(data, found)
        file.write(data)
    return found


def write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays to one .npz file, large ones a piece at a time."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                if isinstance(array, StreamedArray):
                    write_npy(file, array)
                else:
                    np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Read all arrays of an .npz file."""
    try:
        with np.load(path, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise TesseraError(f"{path} is damaged and cannot be read ({error})") from error


def open_arrays(folder: Path, listed: Any) -> dict[str, FileArray]:
    """The arrays that a checkpoint's metadata lists; nothing but their headers is read."""
    if not isinstance(listed, dict):
        raise ValueError("its list of large arrays is no object")
    found = {}
    for path, entry in listed.items():
        if not NAME.fullmatch(str(entry["file"])):
            raise ValueError(f"{entry['file']!r} is no name of a file of large arrays")
        found[path] = FileArray(folder / entry["file"], str(entry["dtype"]))
    return found


def _open_plain(path: Path) -> IO[bytes]:
    """Open a file for reading; a link, a pipe or a device is refused."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise TesseraError(f"{path} is not a plain file: a run folder holds no pipes, devices or folders there")
    return os.fdopen(descriptor, "rb")


def _on_disk(dtype: np.dtype) -> np.dtype:
    """The type that stands in the file: one that every NumPy can read."""
    if dtype.hasobject:
        raise ValueError("a checkpoint holds no Python objects")
    return dtype if dtype.kind in "biufc" else np.dtype(f"<u{dtype.itemsize}")


def moving_handler(ocp: Any) -> type:
    """The class of arguments with which Orbax moves a folder of files into a checkpoint, to complete both at once."""

    class FilesHandler(ocp.CheckpointHandler):
        """Moves files that are already written."""

        def save(self, directory: Any, *_: Any, args: Any) -> None:
            for name in sorted(os.listdir(args.folder)):
                os.rename(Path(args.folder) / name, Path(directory) / name)

        def restore(self, directory: Any, *_: Any, **__: Any) -> None:
            raise NotImplementedError("`open_arrays` reads them")

    @ocp.args.register_with_handler(FilesHandler, for_save=True, for_restore=True)
    @dataclasses.dataclass
    class MoveFiles(ocp.args.CheckpointArgs):
        """Which folder's files to move."""

        folder: Path

    return MoveFiles
