"""What replicas of different machines send each other, as one piece of bytes: Ray takes its time for every argument."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Name = tuple[int, int]
"""A channel and a lane."""
Owed = dict[tuple[Name, int], int]
"""Link and reader -> messages that it is done with."""

_FIXED = struct.Struct("<5q")
_OWED = struct.Struct("<4q")
_STAMP = struct.Struct("<6q")
BESIDE = -1
"""The size of a message that comes beside its letter."""


class Sender(NamedTuple):
    """Who sends something."""

    place: int
    life: int
    """How many have been at that place, this one included."""
    presence: int
    """Whether it takes part."""


class Stamp(NamedTuple):
    """What a link needs to know of a message."""

    name: Name
    number: int
    version: int
    first: int
    """From which number on messages are sent to this reader: what was before it does not come any more."""


class Letter(NamedTuple):
    """What is sent at once."""

    sender: Sender
    owed: Owed
    stamps: tuple[Stamp, ...] = ()
    """Of the messages that are in it, or come with it."""


def seal(letter: Letter, contents: Sequence[np.ndarray | None] = ()) -> bytes:
    """Make one piece of a letter and the bytes of its messages, which are first: so they stay aligned.

    None stands for bytes that come beside it.
    """
    parts: list[bytes | memoryview] = [content.data for content in contents if content is not None]
    for (name, number, version, first), content in zip(letter.stamps, contents, strict=True):
        parts.append(_STAMP.pack(*name, number, version, first, BESIDE if content is None else content.nbytes))
    parts += [_OWED.pack(*link, reader, taken) for (link, reader), taken in letter.owed.items()]
    parts.append(_FIXED.pack(*letter.sender, len(letter.stamps), len(letter.owed)))
    return b"".join(parts)


def unseal(sealed: bytes, beside: Sequence[np.ndarray] = ()) -> tuple[Letter, list[np.ndarray]]:
    """The letter, and the bytes of its messages, which cannot be written to."""
    end = len(sealed) - _FIXED.size
    *sender, stamped, owing = _FIXED.unpack_from(sealed, end)
    end -= owing * _OWED.size
    found = [_OWED.unpack_from(sealed, end + k * _OWED.size) for k in range(owing)]
    owed = {((c, k), reader): taken for c, k, reader, taken in found}
    end -= stamped * _STAMP.size
    stamps, contents, begin, others = [], [], 0, iter(beside)
    for k in range(stamped):
        channel, lane, number, version, first, size = _STAMP.unpack_from(sealed, end + k * _STAMP.size)
        stamps.append(Stamp((channel, lane), number, version, first))
        contents.append(next(others) if size == BESIDE else np.frombuffer(sealed, np.uint8, size, begin))
        begin += max(size, 0)
    return Letter(Sender(*sender), owed, tuple(stamps)), contents
