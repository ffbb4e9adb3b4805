"""What replicas of different machines send each other, as one piece of bytes: Ray takes its time for every argument."""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

Name = tuple[int, int]
"""A channel and a lane."""
Owed = dict[tuple[Name, int], int]
"""Link and reader -> messages that it is done with."""

_FIXED = struct.Struct("<9q")
_OWED = struct.Struct("<4q")


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
    stamp: Stamp | None
    """Of the message that is in it, or comes with it; None: there is none."""


def seal(letter: Letter, content: np.ndarray | None = None) -> bytes:
    """Make one piece of a letter and the bytes of its message, which are first: so they stay aligned."""
    name, number, version, first = letter.stamp or ((-1, -1), -1, -1, -1)
    parts = [b"" if content is None else content.data]
    parts += [_OWED.pack(*link, reader, taken) for (link, reader), taken in letter.owed.items()]
    parts.append(_FIXED.pack(*letter.sender, *name, number, version, first, len(letter.owed)))
    return b"".join(parts)


def unseal(sealed: bytes) -> tuple[Letter, np.ndarray]:
    """The letter, and the bytes of its message, which cannot be written to."""
    end = len(sealed) - _FIXED.size
    place, life, presence, channel, lane, number, version, first, count = _FIXED.unpack_from(sealed, end)
    begin = end - count * _OWED.size
    found = [_OWED.unpack_from(sealed, begin + k * _OWED.size) for k in range(count)]
    owed = {((c, k), reader): taken for c, k, reader, taken in found}
    stamp = None if number < 0 else Stamp((channel, lane), number, version, first)
    return Letter(Sender(place, life, presence), owed, stamp), np.frombuffer(sealed, np.uint8, begin)
