"""Arrays as bytes, with a header of JSON: what processes exchange outside of channels."""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from tessera.errors import TesseraError
from tessera.support.streamed_arrays import StreamedArray

Arrays = dict[str, np.ndarray]
ARRAY = "array of this message"
"""Key of the object that stands for an array in JSON."""


def pack(meta: dict[str, Any], arrays: Arrays) -> bytes:
    """Join a header and arrays to bytes."""
    return b"".join(_pieces(meta, arrays))


def unpack(data: Any) -> tuple[dict[str, Any], Arrays]:
    """Split bytes into the header and copies of the arrays."""
    view = memoryview(data)
    (size,) = struct.unpack_from("<q", view)
    header = json.loads(bytes(view[8 : 8 + size]))
    arrays, offset = {}, 8 + size
    for name, dtype, shape in header["arrays"]:
        kind = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(view, kind, count, offset).reshape(shape).copy()
        offset += count * kind.itemsize
    return header["meta"], arrays


def write_block(meta: dict[str, Any], arrays: Arrays) -> tuple[int, int]:
    """Put a header and arrays that may be large into memory without a name: (file descriptor, size)."""
    fd = os.memfd_create("tessera-block")
    size = 0
    with os.fdopen(os.dup(fd), "wb") as file:
        for piece in _pieces(meta, arrays):
            size += file.write(piece)
    return fd, size


def read_block(pid: int, fd: int, size: int) -> tuple[dict[str, Any], Arrays]:
    """Read what a living process has written with `write_block`."""
    with open(f"/proc/{pid}/fd/{fd}", "rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as block:
        return unpack(bytes(block))


def split_arrays(value: Any) -> tuple[Any, Arrays]:
    """Split plain data (numbers, texts, lists, dicts, arrays) into JSON and arrays; tuples become lists."""
    arrays: Arrays = {}

    def plain(value: Any) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, np.ndarray | jax.Array) and not np.asarray(value).dtype.hasobject:
            arrays[str(len(arrays))] = np.asarray(value)
            return {ARRAY: str(len(arrays) - 1)}
        raise TesseraError(
            f"{type(value).__name__} {value!r:.60} is not plain data: use numbers, texts, lists, dicts with texts for "
            "keys, and arrays"
        )

    return plain(value), arrays


def join_arrays(plain: Any, arrays: Arrays) -> Any:
    """Undo `split_arrays`."""
    if isinstance(plain, list):
        return [join_arrays(item, arrays) for item in plain]
    if isinstance(plain, dict):
        if ARRAY in plain:
            return arrays[plain[ARRAY]]
        return {key: join_arrays(item, arrays) for key, item in plain.items()}
    return plain


def leaves_of(slots: dict[str, Any]) -> Arrays:
    """All leaves of these slots, by slot and number."""
    return split_leaves(slots)[0]


def split_leaves(slots: dict[str, Any]) -> tuple[Arrays, dict[str, StreamedArray]]:
    """All leaves of these slots, by slot and number: those that travel whole, and those that go piece by piece."""
    whole: Arrays = {}
    large: dict[str, StreamedArray] = {}
    for slot, value in slots.items():
        for k, leaf in enumerate(jax.tree.leaves(value)):
            if isinstance(leaf, StreamedArray):
                large[f"{slot}/{k}"] = leaf
                continue
            is_key = isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            whole[f"{slot}/{k}"] = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
    return whole, large


def from_leaves(arrays: Mapping[str, Any], like: dict[str, Any]) -> dict[str, Any]:
    """Slots from their leaves; `like` has trees of the same structure."""
    out = {}
    for slot in dict.fromkeys(name.rpartition("/")[0] for name in arrays):
        leaves, structure = jax.tree.flatten(like[slot])
        stored = [arrays[f"{slot}/{k}"] for k in range(len(leaves))]
        is_key = [hasattr(x, "dtype") and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) for x in leaves]
        pairs = zip(stored, is_key, strict=True)
        values = [jax.random.wrap_key_data(jax.numpy.asarray(x)) if key else x for x, key in pairs]
        out[slot] = jax.tree.unflatten(structure, values)
    return out


def _pieces(meta: dict[str, Any], arrays: Arrays) -> list[bytes | memoryview]:
    contiguous = {name: np.ascontiguousarray(x) for name, x in arrays.items()}
    table = [(name, x.dtype.str, np.shape(arrays[name])) for name, x in contiguous.items()]
    header = json.dumps({"meta": meta, "arrays": table}).encode()
    return [
        struct.pack("<q", len(header)),
        header,
        *(x.reshape(-1).view(np.uint8).data for x in contiguous.values() if x.size),
    ]
