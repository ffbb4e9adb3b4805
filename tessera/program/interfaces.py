"""What `drive` is handed besides a program and its slots: a port to the channels, a tracer and a clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tessera.program.nodes import Node

Clock = Callable[[], float]
"""Gives the time in seconds; never goes back."""


class Endpoint(Protocol):
    """One end of the channels."""

    def send(self, channel: int, value: Any) -> bool:
        """Send a value; False if there is no room yet."""

    def receive(self, channel: int) -> tuple[bool, Any]:
        """Take a value: (whether one has arrived, the value)."""


class Port(Endpoint, Protocol):
    """One replica's end of the channels, at which each peer can also be served alone."""

    def peer_slices(self, channel: int) -> dict[int, slice] | None:
        """The groups of each peer, among those of this replica; None where all peers are waited for."""

    def batching_seconds(self, channel: int) -> float:
        """How long peers that are ready wait for the others."""

    def send_to(self, channel: int, peer: int, value: Any) -> bool:
        """Send a value to one peer; False if there is no room yet."""

    def receive_from(self, channel: int, peer: int) -> tuple[bool, Any]:
        """Take a value from one peer: (whether one has arrived, the value)."""


class Tracer(Protocol):
    """Records what a program did and when."""

    def span(self, node: Node, begin: float, waiting: bool = False) -> float:
        """Record that a node ran, or waited, from `begin` until now, by the clock of the run; returns now."""
