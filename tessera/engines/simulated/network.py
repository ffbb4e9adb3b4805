"""Network cards in virtual time: what goes from one node to another queues at both of their cards."""

from __future__ import annotations

import math

from tessera.engines.simulated.virtual_time import Event, VirtualTime


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

    def send(self, ready: float, nbytes: float) -> float:
        """Send what is ready at a time, after all that came before; when the last byte has left."""
        self._sending_until = max(ready, self._sending_until) + nbytes / self.bandwidth
        self.sent_bytes += nbytes
        return self._sending_until

    def receive(self, now: float, nbytes: float) -> float:
        """Receive what begins to arrive now, after all that came before; when the last byte is there."""
        self._receiving_until = max(now, self._receiving_until) + nbytes / self.bandwidth
        self.received_bytes += nbytes
        return self._receiving_until


def transmit(
    time: VirtualTime, sender: NetworkCard, receiver: NetworkCard, sent: float, received: float, ready: float,
    then: Event,
) -> None:  # fmt: skip
    """Have a message that is ready at a time go through two cards, and then call.

    It comes in while it is still going out, so the slower of two free cards decides. Its bytes may differ at the two
    ends, where a message stands for those of many nodes that are alike.
    """
    left = sender.send(ready, sent)
    latency = max(sender.latency, receiver.latency)

    def come_in() -> None:
        there = receiver.receive(time.now, received)
        time.after(max(there, left + latency) - time.now, then)

    time.after(left - sent / sender.bandwidth + latency - time.now, come_in)
