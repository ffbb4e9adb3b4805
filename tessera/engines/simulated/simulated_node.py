"""A node in virtual time: its cores, its accelerators and its network card."""

from __future__ import annotations

from tessera.engines.simulated.cluster import NodeKind
from tessera.engines.simulated.costs import Costs
from tessera.engines.simulated.network import NetworkCard
from tessera.engines.simulated.prediction import NodeUse
from tessera.engines.simulated.virtual_time import Cores, Device, VirtualTime


class SimulatedNode:
    """One machine."""

    def __init__(self, time: VirtualTime, kind: NodeKind, costs: Costs) -> None:
        self.kind = kind
        self.cores = Cores(time, kind.cores, costs.slowdown, kind.speed)
        speed = kind.accelerator_speed or kind.speed
        self.devices = [Device(time, speed, costs.device_switch) for _ in range(kind.accelerators)]
        self.card = NetworkCard(kind.bandwidth, kind.latency)

    def begin_measuring(self) -> None:
        """Count from here on."""
        self.cores.forget_use()
        self.card.forget_bytes()

    def use(self, holds: str, alike: float, seconds: float, memory: float) -> NodeUse:
        """What it did in so many seconds."""
        sent, received = self.card.sent_bytes / seconds, self.card.received_bytes / seconds
        share = min(1.0, max(sent, received) / self.kind.bandwidth)
        cores = self.cores.used / (seconds * self.kind.cores)
        return NodeUse(self.kind.name, holds, alike, cores, sent, received, share, memory, self.kind.memory)
