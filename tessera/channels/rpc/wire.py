"""The wire format between replicas of different machines: one packet is one array of bytes.

Ray spends time on each argument of a call, so a packet is a single argument.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

LinkName = tuple[int, int]
"""A channel and a lane."""
Credits = dict[tuple[LinkName, int], int]
"""Link and reader -> messages that the reader has released."""

_TRAILER = struct.Struct("<5q")
_CREDIT = struct.Struct("<4q")
_HEADER = struct.Struct("<6q")
ATTACHED = -1
"""The size field of a message whose bytes are attached to the packet."""


class Sender(NamedTuple):
    """The replica that sends a packet."""

    place: int
    life: int
    """How many processes have had this place, this one included."""
    presence: int
    """Whether the replica takes part."""


class MessageHeader(NamedTuple):
    """What a link needs to know of a message."""

    link: LinkName
    number: int
    version: int
    first: int
    """The first number that this reader gets: earlier messages will not come any more."""


class Packet(NamedTuple):
    """What one call carries."""

    sender: Sender
    credits: Credits
    headers: tuple[MessageHeader, ...] = ()
    """Of the messages in the packet or attached to it."""


def encode(packet: Packet, contents: Sequence[np.ndarray | None] = ()) -> bytes:
    """Join a packet and the bytes of its messages; None stands for bytes that are attached.

    The messages come first, so that they stay aligned.
    """
    parts: list[bytes | memoryview] = [content.data for content in contents if content is not None]
    for (link, number, version, first), content in zip(packet.headers, contents, strict=True):
        parts.append(_HEADER.pack(*link, number, version, first, ATTACHED if content is None else content.nbytes))
    parts += [_CREDIT.pack(*link, reader, taken) for (link, reader), taken in packet.credits.items()]
    parts.append(_TRAILER.pack(*packet.sender, len(packet.headers), len(packet.credits)))
    return b"".join(parts)


def decode(data: bytes, attachments: Sequence[np.ndarray] = ()) -> tuple[Packet, list[np.ndarray]]:
    """Split data into the packet and the bytes of its messages, which are read-only."""
    end = len(data) - _TRAILER.size
    *sender, header_count, credit_count = _TRAILER.unpack_from(data, end)
    end -= credit_count * _CREDIT.size
    rows = [_CREDIT.unpack_from(data, end + k * _CREDIT.size) for k in range(credit_count)]
    credits = {((channel, lane), reader): taken for channel, lane, reader, taken in rows}
    end -= header_count * _HEADER.size
    headers, contents, begin, attached = [], [], 0, iter(attachments)
    for k in range(header_count):
        channel, lane, number, version, first, size = _HEADER.unpack_from(data, end + k * _HEADER.size)
        headers.append(MessageHeader((channel, lane), number, version, first))
        contents.append(next(attached) if size == ATTACHED else np.frombuffer(data, np.uint8, size, begin))
        begin += max(size, 0)
    return Packet(Sender(*sender), credits, tuple(headers)), contents
