"""How a value is split where it is made and merged where it is wanted: the same for every engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from tessera.graph.plan import Channel, Plan
from tessera.program.nodes import SLOTS


@dataclass(frozen=True)
class Route:
    """The route of one channel of a plan."""

    plan: Plan
    channel: Channel

    @property
    def sources(self) -> int:
        """Replicas that send."""
        return self.plan.fragments[self.channel.source].replicas

    @property
    def targets(self) -> int:
        """Replicas that receive."""
        return self.plan.fragments[self.channel.target].replicas

    def groups_of_source(self, p: int) -> tuple[int, ...]:
        """Groups that sending replica `p` holds."""
        return self.plan.fragments[self.channel.source].groups[p]

    def shared(self, p: int, q: int) -> list[int]:
        """Positions, among the groups of sender `p`, of those that receiver `q` holds too."""
        wanted = set(self.plan.fragments[self.channel.target].groups[q])
        return [k for k, g in enumerate(self.groups_of_source(p)) if g in wanted]

    def linked(self, p: int, q: int) -> bool:
        """Whether sender `p` has anything for receiver `q`."""
        if self.channel.route == "reshard":
            return bool(self.shared(p, q))
        return p == q % self.sources if self.channel.route == "copy" else True

    def split(self, p: int, q: int, value: Any) -> Any:
        """What of sender `p`'s value goes to receiver `q`."""
        if self.channel.route != "reshard":
            return value
        mine = self.shared(p, q)
        if len(mine) == len(self.groups_of_source(p)):
            return value
        part = slice(mine[0], mine[-1] + 1)
        axis = SLOTS[self.channel.slot].axis
        return jax.tree.map(lambda x: x[(slice(None),) * axis + (part,)], value)

    def merge(self, parts: dict[int, Any]) -> Any:
        """Put together what receiver `q` got from each sender, in the senders' order."""
        values = [parts[p] for p in sorted(parts)]
        if self.channel.route in ("reshard", "gather"):
            return concatenate(values, SLOTS[self.channel.slot].axis)
        if self.channel.route == "mean":
            return weighted_mean(values, [len(self.groups_of_source(p)) for p in sorted(parts)])
        return values[0]


def concatenate(values: list[Any], axis: int) -> Any:
    """Join trees along an axis, on the host where they are on the host."""
    if len(values) == 1:
        return values[0]

    def leaf(*xs: Any) -> Any:
        on_host = all(isinstance(x, np.ndarray) for x in xs)
        return np.concatenate(xs, axis) if on_host else jax.numpy.concatenate(xs, axis)

    return jax.tree.map(leaf, *values)


def weighted_mean(values: list[Any], weights: list[int]) -> Any:
    """Mean of trees, weighted (by rows, which are in proportion to groups)."""
    total = sum(weights)
    shares = [w / total for w in weights]
    return jax.tree.map(lambda *xs: sum(x * s for x, s in zip(xs, shares, strict=True)), *values)
