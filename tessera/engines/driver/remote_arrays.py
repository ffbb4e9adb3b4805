"""Large arrays of replicas, as the driver sees them: each piece is a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tessera.engines.base import SnapshotLost
from tessera.engines.driver.supervisor import Answer
from tessera.support.streamed_arrays import Piece, StreamedArray

Request = Callable[[int, dict[str, Any]], dict[int, Answer]]
"""Sends a command to a place: the answers by place."""


class RemoteArray(StreamedArray):
    """An array of a replica that stands still for a snapshot."""

    def __init__(
        self, place: int, snapshot: int, name: str, shape: tuple[int, ...], dtype: np.dtype, request: Request
    ) -> None:
        self._place, self._snapshot, self._name, self._request = place, snapshot, name, request
        self.shape, self.dtype = shape, dtype

    def read(self, piece: Piece) -> np.ndarray:
        """Rows of one group; a replica that was replaced since has none."""
        command = {"do": "read_piece", "number": self._snapshot, "leaf": self._name, "piece": list(piece)}
        answer = self._request(self._place, command).get(self._place)
        if answer is None or "rows" not in answer[1]:
            raise SnapshotLost("a replica died while its part of a snapshot was read: take another")
        return answer[1]["rows"].view(self.dtype)


def remote_arrays(
    place: int, snapshot: int, large: dict[str, tuple[list[int], str]], request: Request
) -> dict[str, RemoteArray]:
    """The large arrays that a replica has named in its answer, with their shapes and types."""
    return {
        name: RemoteArray(place, snapshot, name, tuple(shape), np.dtype(dtype), request)
        for name, (shape, dtype) in large.items()
    }
