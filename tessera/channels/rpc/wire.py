"""What replicas of different machines send each other, as one piece of bytes: Ray takes its time for every argument."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Name = tuple[int, int]
"""A channel and a lane."""
Credits = dict[tuple[Name, int], int]
"""Link and reader -> messages that it is done with."""

_FIXED = struct.Struct("<5q")
_OWED = struct.Struct("<4q")
_STAMP = struct.Struct("<6q")
ATTACHED = -1
"""The size of a message that comes attachments its packet."""


class Sender(NamedTuple):
    """Who sends something."""

    place: int
    life: int
    """How many have been at that place, this one included."""
    presence: int
    """Whether it takes part."""


class MessageHeader(NamedTuple):
    """What a link needs to know of a message."""

    name: Name
    number: int
    version: int
    first: int
    """From which number on messages are sent to this reader: what was before it does not come any more."""


class Packet(NamedTuple):
    """What is sent at once."""

    sender: Sender
    credits: Credits
    headers: tuple[MessageHeader, ...] = ()
    """Of the messages that are in it, or come with it."""


def encode(packet: Packet, contents: Sequence[np.ndarray | None] = ()) -> bytes:
    """Make one piece of a packet and the bytes of its messages, which are first: so they stay aligned.

    None stands for bytes that come attachments it.
    """
    parts: list[bytes | memoryview] = [content.data for content in contents if content is not None]
    for (name, number, version, first), content in zip(packet.headers, contents, strict=True):
        parts.append(_STAMP.pack(*name, number, version, first, ATTACHED if content is None else content.nbytes))
    parts += [_OWED.pack(*link, reader, taken) for (link, reader), taken in packet.credits.items()]
    parts.append(_FIXED.pack(*packet.sender, len(packet.headers), len(packet.credits)))
    return b"".join(parts)


def decode(data: bytes, attachments: Sequence[np.ndarray] = ()) -> tuple[Packet, list[np.ndarray]]:
    """The packet, and the bytes of its messages, which cannot be written to."""
    end = len(data) - _FIXED.size
    *sender, stamped, owing = _FIXED.unpack_from(data, end)
    end -= owing * _OWED.size
    found = [_OWED.unpack_from(data, end + k * _OWED.size) for k in range(owing)]
    credits = {((c, k), reader): taken for c, k, reader, taken in found}
    end -= stamped * _STAMP.size
    headers, contents, begin, others = [], [], 0, iter(attachments)
    for k in range(stamped):
        channel, lane, number, version, first, size = _STAMP.unpack_from(data, end + k * _STAMP.size)
        headers.append(MessageHeader((channel, lane), number, version, first))
        contents.append(next(others) if size == ATTACHED else np.frombuffer(data, np.uint8, size, begin))
        begin += max(size, 0)
    return Packet(Sender(*sender), credits, tuple(headers)), contents
