"""Network cards in virtual time: what goes from one node to another queues at both of their cards."""

from __future__ import annotations

import math


class NetworkCard:
    """The card of one node: what is sent through it goes out in order, and so comes in what is received."""

    def __init__(self, bandwidth: float = math.inf, latency: float = 0.0) -> None:
        """`bandwidth` in bytes a second, in each direction; `latency` in seconds, to any other node."""
        self.bandwidth, self.latency = bandwidth, latency
        self.sent_bytes = 0.0
        self.received_bytes = 0.0
        self._sending_until = 0.0
        self._receiving_until = 0.0

    def forget_bytes(self) -> None:
        """Count from here on."""
        self.sent_bytes = self.received_bytes = 0.0


def transmit(now: float, sender: NetworkCard, receiver: NetworkCard, sent: float, received: float) -> float:
    """When a message that leaves a card now, or when that is free, has come in at another one.

    It comes in while it is still going out, so the slower of two free cards decides. The bytes may differ at the two
    ends, where a message stands for those of many nodes that are alike.
    """
    begun = max(now, sender._sending_until)
    sender._sending_until = begun + sent / sender.bandwidth
    latency = max(sender.latency, receiver.latency)
    coming = max(begun + latency, receiver._receiving_until)
    arrived = max(coming + received / receiver.bandwidth, sender._sending_until + latency)
    receiver._receiving_until = arrived
    sender.sent_bytes += sent
    receiver.received_bytes += received
    return arrived
