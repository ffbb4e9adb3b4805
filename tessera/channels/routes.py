"""How a value is taken apart and put together where it is wanted: the same for every engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from tessera.algorithms.contract import Algorithm
from tessera.graph.plan import Channel, Plan
from tessera.program.exchange import Shards, SoloGradient, shards_of
from tessera.program.initial import initial_state
from tessera.program.nodes import SLOTS
from tessera.program.overlap.slot_slices import concatenate_trees
from tessera.program.training import acting, published

BY_GROUPS = ("reshard", "agents")
"""Routes on which each receiver gets the groups that it holds; from all who act for its agents, on the second."""


@dataclass(frozen=True)
class Route:
    """The route of one channel of a plan."""

    plan: Plan
    channel: Channel
    shards: Shards | None = None
    """How params are cut, where a server of several shards is at one end."""
    whole: Any = None
    """What receivers of params want, in shape."""

    @property
    def sources(self) -> int:
        """Replicas that send."""
        return self.plan.fragments[self.channel.source].replicas

    @property
    def targets(self) -> int:
        """Replicas that receive."""
        return self.plan.fragments[self.channel.target].replicas

    def made(self, p: int) -> tuple[int, ...]:
        """Groups that sending replica `p` holds."""
        return self.plan.fragments[self.channel.source].held(self.channel.made_by)[p]

    def wanted(self, q: int) -> tuple[int, ...]:
        """Groups that receiving replica `q` holds."""
        return self.plan.fragments[self.channel.target].held(self.channel.wanted_by)[q]

    def shared(self, p: int, q: int) -> list[int]:
        """Positions, among the groups of sender `p`, of those that receiver `q` holds too."""
        if self.channel.mode == "first":  # there is one receiver, and any group may come to it
            return list(range(len(self.made(p))))
        wanted = set(self.wanted(q))
        return [k for k, g in enumerate(self.made(p)) if g in wanted]

    def linked(self, p: int, q: int) -> bool:
        """Whether sender `p` has anything for receiver `q`."""
        if self.channel.route in BY_GROUPS:
            return bool(self.shared(p, q))
        return p == q % self.sources if self.channel.route == "copy" else True

    def readers(self, p: int) -> list[int]:
        """Receivers that sender `p` has something for."""
        return [q for q in range(self.targets) if self.linked(p, q)]

    def writers(self, q: int) -> list[int]:
        """Senders that have something for receiver `q`."""
        return [p for p in range(self.sources) if self.linked(p, q)]

    def lane(self, p: int, q: int) -> int:
        """Number of the link from sender `p` to receiver `q`: one for all of its receivers, or one for each."""
        return p * self.targets + q if self.channel.apart else p

    def lanes(self) -> dict[int, tuple[int, list[int]]]:
        """All links: sender and receivers of each."""
        found: dict[int, tuple[int, list[int]]] = {}
        for p in range(self.sources):
            for q in self.readers(p):
                found.setdefault(self.lane(p, q), (p, []))[1].append(q)
        return found

    def carried(self, lane: int) -> int:
        """Groups in a message of a link."""
        p, readers = self.lanes()[lane]
        return len(self.shared(p, readers[0])) if self.channel.apart else len(self.made(p))

    def taken(self, p: int, q: int, value: Any) -> Any:
        """What of a message from sender `p` is for receiver `q`."""
        return value if self.channel.apart else self.part(p, q, value)

    def part(self, p: int, q: int, value: Any) -> Any:
        """What of sender `p`'s value is for receiver `q`."""
        if self.channel.route == "scatter":
            return self._shard(value, q)
        if self.channel.route not in BY_GROUPS:
            return value
        mine = self.shared(p, q)
        if len(mine) == len(self.made(p)):
            return value
        return self.slice(value, slice(mine[0], mine[-1] + 1))

    def slice(self, value: Any, part: slice) -> Any:
        """Some of the groups of a value."""
        axis = SLOTS[self.channel.slot].axis
        return jax.tree.map(lambda x: x[(slice(None),) * axis + (part,)], value)

    def merge(self, parts: dict[int, Any]) -> Any:
        """Put together what a receiver got from each sender, in the senders' order."""
        values = [parts[p] for p in sorted(parts)]
        match self.channel.route:
            case "reshard" | "gather":
                return self.join(values)
            case "agents":
                return concatenate_trees(values, SLOTS[self.channel.slot].axis + 2)
            case "mean" | "scatter":
                return weighted_mean(values, [len(self.made(p)) for p in sorted(parts)])
            case "sum":
                return jax.tree.map(lambda *xs: sum(xs[1:], start=xs[0]), *values)
            case "join":
                assert self.shards is not None
                return self.shards.join(values, self.whole)
        return values[0]

    def join(self, values: list[Any]) -> Any:
        """Join groups."""
        return concatenate_trees(values, SLOTS[self.channel.slot].axis)

    def _shard(self, value: Any, q: int) -> Any:
        assert self.shards is not None
        if isinstance(value, SoloGradient):
            return value._replace(values=self.shards.part(value.values, q))
        return self.shards.part(value, q)


def make_routes(plan: Plan, algorithm: Algorithm) -> list[Route]:
    """The routes of a plan's channels."""
    server = plan.fragments[plan.home("apply")]
    if not server.sharded:
        return [Route(plan, c) for c in plan.channels]
    shards = shards_of(algorithm, server.replicas)
    view = jax.eval_shape(lambda key: published(initial_state(algorithm, key, 1)), jax.random.key(0))
    whole = {"view": view, "acting": acting(view)}
    return [Route(plan, c, shards, whole.get(c.slot)) for c in plan.channels]


def weighted_mean(values: list[Any], weights: list[int]) -> Any:
    """Mean of trees, weighted (by rows, which are in proportion to groups); whole numbers are equal, and kept."""
    total = sum(weights)
    shares = [w / total for w in weights]

    def leaf(*xs: Any) -> Any:
        if np.issubdtype(np.asarray(xs[0]).dtype if np.isscalar(xs[0]) else xs[0].dtype, np.integer):
            return xs[0]
        return sum(x * s for x, s in zip(xs, shares, strict=True))

    return jax.tree.map(leaf, *values)
