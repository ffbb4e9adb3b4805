"""Checkpoints: all persistent slots at an update boundary. Atomic, no pickle, the last n kept.

Orbax writes arrays and metadata, and completes a checkpoint by giving its folder its name. Large arrays, such as a
replay's, are files of their own (`array_files.py`), which it moves into the folder before that.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
import shutil
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tessera.errors import RunFailed, TesseraError
from tessera.runs.array_files import ITEM, FileArray, moving_handler, open_arrays, write_arrays
from tessera.support.machine import available_memory
from tessera.support.streamed_arrays import StreamedArray
from tessera.support.trees import leaf_path

FORMAT = 1
LARGE_FORMAT = 2
"""The format of a checkpoint with large arrays in files of their own; the rest of it is the same."""
ROOM = 2 * 2**20
"""Bytes on disk that a checkpoint takes besides its arrays, at the most."""
DRAFT = ".orbax-checkpoint-tmp"
"""In the name of a checkpoint that is not complete."""

Arrays = dict[str, Any]
"""Arrays by leaf path: NumPy's, and large ones that are read piece by piece."""


class SaveFailed(RunFailed):
    """A checkpoint could not be written; the one before it is intact."""


class Checkpoints:
    """The checkpoints of one run. A kill during a save leaves the previous checkpoint intact."""

    def __init__(self, folder: Path, keep: int | None = 3, read_only: bool = False) -> None:
        """`keep` is how many are kept; None: as many as are saved."""
        import orbax.checkpoint as ocp  # takes most of a second to import, and often nothing is saved

        logging.getLogger("absl").setLevel(logging.CRITICAL)  # what Orbax complains about, it raises too
        logging.getLogger("asyncio").addFilter(_is_news)
        if keep is not None and keep < 1:
            raise TesseraError(f"--keep {keep}: at least one is needed")
        self._ocp = ocp
        self.folder = folder
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, create=not read_only, enable_async_checkpointing=False, read_only=read_only
        )
        self._options = options
        if not read_only:
            _remove_drafts(folder)
        self._manager = ocp.CheckpointManager(folder.resolve(), options=options)
        self._move_files: Callable[..., Any] = moving_handler(ocp)

    def latest(self) -> int | None:
        """The update of the newest complete checkpoint; None if there is none."""
        return self._manager.latest_step()

    def updates(self) -> list[int]:
        """The updates of all complete checkpoints, in order."""
        return sorted(self._manager.all_steps())

    def save(self, update: int, snapshot: dict[str, Any], meta: dict[str, Any]) -> None:
        """Write a checkpoint and delete the oldest beyond `keep`; what reading the snapshot raises is raised."""
        if update == self.latest():
            return
        args, arrays = self._ocp.args, flatten(snapshot)
        self._check_room(update, sum(array.nbytes for array in arrays.values()))
        large = {path: array for path, array in arrays.items() if isinstance(array, StreamedArray)}
        small = {path: array for path, array in arrays.items() if path not in large}
        meta = {"format": FORMAT, **meta, "checksums": {path: checksum(array) for path, array in small.items()}}
        items = {"slots": args.StandardSave(small)}
        with self._draft(update) as draft:
            if large:
                listed, checksums = self._write_large(update, draft, large)
                meta |= {"format": LARGE_FORMAT, "large": listed, "checksums": {**meta["checksums"], **checksums}}
                items[ITEM] = self._move_files(draft)
            meta["checksum"] = _checksum_of_meta(meta)
            try:
                self._manager.save(update, args=args.Composite(**items, meta=args.JsonSave(meta)), force=True)
            except Exception as error:  # a full disk makes Orbax raise anything
                raise self._after_failure(update, error) from error

    def save_alone(self, update: int, snapshot: dict[str, Any], meta: dict[str, Any]) -> None:
        """Write a checkpoint, also of an update before the newest, and delete all others once it is complete."""
        if update in self.updates():
            self._manager.delete(update)
        self.save(update, snapshot, meta)
        for other in self.updates():
            if other != update:
                self._manager.delete(other)

    def forget_after(self, update: int | None) -> None:
        """Delete checkpoints of later updates; None: all."""
        for other in self.updates():
            if update is None or other > update:
                self._manager.delete(other)

    def forget_before(self, update: int) -> None:
        """Delete checkpoints of earlier updates."""
        for other in self.updates():
            if other < update:
                self._manager.delete(other)

    @contextlib.contextmanager
    def _draft(self, update: int) -> Iterator[Path]:
        """A folder for files until Orbax has moved them; its name marks it as one that a kill may leave behind."""
        draft = self.folder / f"{update}{DRAFT}-{ITEM}"
        try:
            yield draft
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _write_large(
        self, update: int, draft: Path, large: Mapping[str, StreamedArray]
    ) -> tuple[dict[str, Any], dict[str, int]]:
        try:
            return write_arrays(draft, large)
        except OSError as error:
            raise self._after_failure(update, error) from error

    def _after_failure(self, update: int, error: Exception) -> SaveFailed:
        """Remove what was half-written, begin anew, and say what went wrong."""
        with contextlib.suppress(Exception):
            self._manager.close()
        with contextlib.suppress(OSError):
            _remove_drafts(self.folder)
        self._manager = self._ocp.CheckpointManager(self.folder.resolve(), options=self._options)
        return self._failure(update, _cause(error))

    def _failure(self, update: int, cause: str) -> SaveFailed:
        latest = self.latest()
        kept = "there is none yet" if latest is None else f"the last good one is of update {latest}"
        return SaveFailed(f"checkpoint {update} could not be written to {self.folder} ({cause}); {kept}")

    def _check_room(self, update: int, size: int) -> None:
        """Refuse to begin what the disk has no room for: Orbax's threads print tracebacks as they fail."""
        disk = os.statvfs(self.folder)
        free, needed = disk.f_bavail * disk.f_frsize, int(size * 1.05) + ROOM
        if needed > free:
            megabytes = f"{needed / 2**20:,.1f} MB needed, {free / 2**20:,.1f} MB free"
            raise self._failure(update, f"{os.strerror(errno.ENOSPC)}: {megabytes}")

    def load(self, update: int, large: bool = True) -> tuple[Arrays, dict[str, Any]]:
        """Read a checkpoint: arrays by leaf path, and the metadata.

        Arrays in files of their own are compared with their checksums, and read again as they are used; without `large`
        they are left out.
        """
        args = self._ocp.args
        try:
            self._check_size(update)
            restored = self._manager.restore(
                update, args=args.Composite(slots=args.StandardRestore(), meta=args.JsonRestore())
            )
            slots: Arrays = {k: np.asarray(v) for k, v in restored["slots"].items()}
            meta = dict(restored["meta"])
            files = open_arrays(self.folder.resolve() / str(update) / ITEM, meta.get("large", {}))
            self._refuse_huge(update, sum(x.nbytes for x in files.values()) if large else 0)
            _verify({**slots, **files} if large else slots, meta, () if large else files)
            slots |= files if large else {}
        except TesseraError:
            raise
        except Exception as error:  # a damaged file makes Orbax raise anything
            raise TesseraError(
                f"checkpoint {update} in {self.folder} is damaged and cannot be read ({_first_line(error)}): "
                f"{self._way_out(update)}"
            ) from error
        if meta.get("format") not in (FORMAT, LARGE_FORMAT):
            raise TesseraError(
                f"checkpoint {update} in {self.folder} has format {meta.get('format')}, this version "
                f"reads {FORMAT} and {LARGE_FORMAT}: resume it with the version that wrote it"
            )
        return in_present_form(slots), meta

    def _way_out(self, damaged: int) -> str:
        """What to do about a damaged checkpoint: the newest intact one before it is looked for."""
        for update in [step for step in reversed(self.updates()) if step < damaged]:
            try:
                self.load(update)
            except TesseraError:
                continue
            return f"delete the folders of later updates to go on from {update}, the newest one that is intact"
        return "no earlier one is intact, so the run must begin anew in another --run-dir"

    def _check_size(self, update: int) -> None:
        """Refuse arrays that memory cannot hold, before any is allocated: a file can declare more than it contains."""
        with self._ocp.StandardCheckpointer() as reader:
            metadata = reader.metadata(self.folder.resolve() / str(update) / "slots").item_metadata
        declared = jax.tree.leaves(metadata.tree, is_leaf=_is_array)
        self._refuse_huge(
            update, sum(math.prod(x.shape) * np.dtype(x.dtype).itemsize for x in declared if _is_array(x))
        )

    def _refuse_huge(self, update: int, size: int) -> None:
        if size > available_memory():
            raise TesseraError(
                f"checkpoint {update} in {self.folder} declares {size / 2**30:,.0f} GB of arrays, available: "
                f"{available_memory() / 2**30:,.1f} GB; it is damaged or made by hand: delete that folder"
            )

    def close(self) -> None:
        """Close the files."""
        self._manager.close()


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a log record is worth showing. Tasks of a save that failed are not: `save` has raised what went wrong."""
    return not (record.exc_info and DRAFT in str(record.exc_info[1]))


def in_present_form(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A checkpoint's arrays as this version writes them; earlier ones had clocks of 32 bits."""
    out = dict(arrays)
    for path, array in arrays.items():
        if path.endswith("_clock") and array.ndim == 0:
            out[path] = np.asarray([array.astype(np.uint32), 0], np.uint32)
        elif path.endswith("clock/applies"):
            out.setdefault(path.replace("applies", "wraps"), np.zeros((), np.int32))
    return out


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _remove_drafts(folder: Path) -> None:
    """Remove what a kill during a save has left; Orbax gives a checkpoint its own name only when it is complete."""
    for draft in folder.glob(f"*{DRAFT}*"):
        shutil.rmtree(draft)


def checksum(array: np.ndarray) -> int:
    """CRC-32 of an array's bytes: damage is found, a forgery is not."""
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data) if array.size else 0


def _checksum_of_meta(meta: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps({k: v for k, v in meta.items() if k != "checksum"}, sort_keys=True).encode())


def _verify(slots: Arrays, meta: dict[str, Any], left_out: Collection[str]) -> None:
    """Compare arrays with the checksums that were saved with them; checkpoints of earlier versions have none."""
    if "checksum" not in meta and "checksums" not in meta:
        return
    if meta.get("checksum") != _checksum_of_meta(meta):
        raise ValueError("its metadata has changed since it was written")
    compared = {*slots, *meta["checksums"]} - {*left_out}
    wrong = sorted(path for path in compared if _differs(path, slots, meta["checksums"]))
    if wrong:
        raise ValueError(f"{wrong[0]} has changed since it was written")


def _differs(path: str, slots: Arrays, checksums: dict[str, int]) -> bool:
    if path not in slots or path not in checksums:
        return True
    array = slots[path]
    return checksums[path] != (array.checksum() if isinstance(array, FileArray) else checksum(array))


def flatten(tree: Any) -> Arrays:
    """The leaves of a tree by path, as NumPy arrays: a checkpoint depends on no device and no Python class.

    Large arrays that are read piece by piece stay as they are.
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {leaf_path(path): _as_numpy(leaf) for path, leaf in leaves}


def paths(tree: Any) -> list[str]:
    """Paths of all leaves, in order."""
    return [leaf_path(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]


def unflatten(template: Any, arrays: Mapping[str, Any], where: str) -> Any:
    """Put arrays back into the structure of `template`, whose leaves are arrays or only their shapes and types.

    An error names the first that does not fit.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(template)
    expected = {leaf_path(path): leaf for path, leaf in leaves}
    mismatched = sorted(set(expected) ^ set(arrays))
    if mismatched:
        verb = "lacks" if mismatched[0] in expected else "holds"
        raise TesseraError(
            f"{where} {verb} {mismatched[0]!r}, so it was made by another algorithm, configuration or policy: "
            "resume with the configuration in the run's config.json"
        )
    for path, leaf in expected.items():
        if np.shape(arrays[path]) != _as_saved(leaf).shape:
            raise TesseraError(
                f"{where} holds {path!r} of shape {np.shape(arrays[path])}, but this run needs "
                f"{_as_saved(leaf).shape}: resume with the configuration in the run's config.json"
            )
    return jax.tree_util.tree_unflatten(structure, [_like(leaf, arrays[leaf_path(path)]) for path, leaf in leaves])


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _as_saved(leaf: Any) -> Any:
    """A leaf with the shape and type that it has in a checkpoint."""
    return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else _as_numpy(leaf)


def _as_numpy(leaf: Any) -> Any:
    if isinstance(leaf, StreamedArray):
        return leaf
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _like(leaf: Any, array: Any) -> Any:
    if _is_key(leaf):
        return jax.random.wrap_key_data(jax.numpy.asarray(array))
    dtype = _as_saved(leaf).dtype
    if isinstance(array, StreamedArray) and array.dtype == dtype:
        return array
    return np.asarray(array).astype(dtype, copy=False)


def _cause(error: Exception) -> str:
    """The operating system's word for what went wrong, if it has one."""
    for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
        if os.strerror(code) in str(error) or getattr(error, "errno", None) == code:
            return os.strerror(code)
    return _first_line(error)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__
