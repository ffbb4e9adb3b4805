"""Channels within one thread: a bounded queue for each pair of replicas."""

from __future__ import annotations

from collections import deque
from typing import Any

from tessera.engines.routes import Route


class MemoryChannel:
    """All replicas' ends of one channel."""

    def __init__(self, route: Route, capacity: int = 1) -> None:
        self.route = route
        self.capacity = capacity + route.channel.lag
        pairs = [(p, q) for p in range(route.sources) for q in range(route.targets) if route.linked(p, q)]
        self.boxes: dict[tuple[int, int], deque[Any]] = {pair: deque() for pair in pairs}
        self.moved = 0
        """Messages sent and received so far; what shows progress."""

    def preload(self, tokens: list[Any]) -> None:
        """Put values in flight before anything is sent: receivers trail behind by as many."""
        for box in self.boxes.values():
            box.clear()
            box.extend(tokens)

    def in_flight(self) -> list[Any]:
        """What is under way between the first pair; every pair of a lagging channel holds the same."""
        return list(next(iter(self.boxes.values())))

    def send(self, p: int, value: Any) -> bool:
        """Send from replica `p` to all that it is linked to, or to none if one has no room."""
        mine = [pair for pair in self.boxes if pair[0] == p]
        if any(len(self.boxes[pair]) >= self.capacity for pair in mine):
            return False
        for pair in mine:
            self.boxes[pair].append(self.route.split(*pair, value))
        self.moved += 1
        return True

    def receive(self, q: int) -> tuple[bool, Any]:
        """Receive at replica `q` once every sender's part is there."""
        mine = [pair for pair in self.boxes if pair[1] == q]
        if not all(self.boxes[pair] for pair in mine):
            return False, None
        self.moved += 1
        return True, self.route.merge({pair[0]: self.boxes[pair].popleft() for pair in mine})
