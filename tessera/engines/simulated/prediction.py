"""What a simulated plan does: how fast, who waits for what, what is old, and what is full."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tessera.channels.link import Flow


@dataclass(frozen=True)
class NodeUse:
    """What nodes that hold the same do."""

    kind: str
    holds: str
    """Its replicas, in words."""
    alike: float
    """How many such nodes there are."""
    cores: float
    """Share of its cores that is busy."""
    sent: float
    """Bytes a second through its network card."""
    received: float
    card: float
    """Share of the time in which its network card is busy, in the busier direction."""
    memory: float = 0.0
    """Bytes that its replicas hold at most."""
    available: float = 0.0
    """Bytes that it has; 0: not known."""


@dataclass(frozen=True)
class Prediction:
    """What a plan would do, once it is under way."""

    steps_per_second: float
    updates_per_second: float
    busy: dict[str, float]
    """Share of the time in which the replicas of each fragment work, or wait for a core to, by its title."""
    flows: dict[str, Flow]
    """What went through each stream: messages, bytes, drops and lag."""
    seconds: float = 0.0
    """Virtual seconds in which all of this was counted."""
    waiting: dict[str, dict[str, float]] = field(default_factory=dict)
    """Fragment -> slot that it waits to send or to receive -> share of the time."""
    lags: dict[str, dict[int, int]] = field(default_factory=dict)
    """Stream -> updates by which messages trailed behind -> how many did."""
    nodes: tuple[NodeUse, ...] = ()
    memory: dict[str, int] = field(default_factory=dict)
    """Bytes that a process of each fragment holds at most."""
    replicas: int = 0
    simulated: int = 0
    """How many of the replicas were simulated."""
    price_per_hour: float = 0.0
    """Of the nodes on which there are replicas; 0: not known."""

    @property
    def bottleneck(self) -> str:
        """The fragment that waits least; or the network card that is busier than every fragment."""
        title = max(self.busy, key=lambda title: self.busy[title])
        card = max(self.nodes, key=lambda node: node.card, default=None)
        if card is not None and card.card > self.busy[title]:
            return f"network card of {card.holds}"
        return title

    def lag_quantile(self, stream: str, share: float) -> int:
        """Updates by which so large a share of the messages of a stream trailed behind at the most."""
        counts = sorted(self.lags.get(stream, {}).items())
        left = share * sum(count for _, count in counts)
        for updates, count in counts:
            left -= count
            if left <= 1e-9:
                return updates
        return counts[-1][0] if counts else 0


@dataclass
class CountedFlow(Flow):
    """An account that keeps how many messages were how old."""

    ages: Counter[int] = field(default_factory=Counter)

    def note_lag(self, updates: float) -> None:
        """Count one message's lag."""
        super().note_lag(updates)
        self.ages[round(updates)] += 1
