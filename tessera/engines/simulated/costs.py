"""What work costs, in seconds: each Op by how many environments it is for, each segment, each message."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field

from tessera.program.nodes import Collective, Node, Op, Repeat, Segment

UNINFORMATIVE_SLOTS = frozenset(
    [
        *("root", "ids", "group_ids", "tensors", "acting", "view", "state", "memory", "env_state", "episode"),
        *("act_keys", "env_keys", "order", "t", "m", "e", "d"),
    ]
)
"""Slots that tell nothing of what an Op is for; nor do clocks."""

Curve = tuple[tuple[int, float], ...]
"""Environments and seconds, as measured, in order."""


@dataclass(frozen=True)
class LinkCosts:
    """What a message costs."""

    latency: float = 0.0
    """Seconds from the end of sending to arriving, however small the message."""
    seconds_per_byte: float = 0.0
    """On the way, while nobody is busy with it."""
    cpu_per_message: float = 0.0
    """At each end."""
    cpu_per_byte: float = 0.0
    """At each end: copying."""

    def cpu_seconds(self, nbytes: int) -> float:
        """Work at one end."""
        return self.cpu_per_message + nbytes * self.cpu_per_byte

    def transit_seconds(self, nbytes: int) -> float:
        """Time between the two ends."""
        return self.latency + nbytes * self.seconds_per_byte


@dataclass(frozen=True)
class Costs:
    """What an algorithm costs in an environment on a kind of machine."""

    ops: Mapping[str, Curve] = field(default_factory=dict)
    """Name of an Op (`op_name`) -> seconds of one call, by environments; what is not named costs nothing."""
    dispatch: float = 0.0
    """Seconds to begin a segment."""
    links: LinkCosts = field(default_factory=LinkCosts)

    def seconds(self, node: Node, envs: int, count: int) -> float:
        """Work of a segment or an Op for so many environments; a loop without a number of its own has `count` turns."""
        match node:
            case Segment():
                return self.dispatch + sum(self.seconds(n, envs, count) for n in node.nodes)
            case Repeat():
                trips = count if node.count is None else node.count
                return trips * sum(self.seconds(n, envs, count) for n in node.body)
            case Op():
                return interpolated(self.ops.get(op_name(node), ()), envs)
            case Collective():
                return 0.0
            case _:
                raise TypeError(f"no cost is defined for {node}")


def op_name(op: Op) -> str:
    """The name of an Op in a table of costs: what it makes of what, as in `act observed -> actions`."""
    read = "+".join(slot for slot in op.reads if slot not in UNINFORMATIVE_SLOTS and not slot.endswith("_clock"))
    made = next((slot for slot in op.writes if slot not in ("memory", "env_state")), op.writes[0])
    return " ".join(filter(None, (op.operator, read, "->", made)))


def interpolated(curve: Curve, envs: int) -> float:
    """Seconds for so many environments: between two measured numbers on a line, above them in proportion.

    Below the least that was measured, and where one number was, it is the same: what starting costs.
    """
    if len(curve) < 2:
        return curve[0][1] if curve else 0.0
    k = bisect.bisect_left(curve, (envs, 0.0))
    if k < len(curve) and curve[k][0] == envs:
        return curve[k][1]
    if k == 0:
        return curve[0][1]
    if k == len(curve):
        return curve[-1][1] * envs / curve[-1][0]
    (a, low), (b, high) = curve[k - 1], curve[k]
    return low + (high - low) * (envs - a) / (b - a)
