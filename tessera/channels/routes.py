"""Routes: how a value is taken apart at its senders and put together at its receivers, the same for every engine."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax

from tessera.algorithms.contract import Algorithm
from tessera.channels.value_operations import ARRAYS, Values
from tessera.graph.channel import Channel
from tessera.graph.disciplines import FirstCome
from tessera.graph.plan import Plan
from tessera.graph.streams import RouteKind
from tessera.program.exchange import Shards, SoloGradient, shards_of
from tessera.program.initial import initial_state
from tessera.program.nodes import SLOTS
from tessera.program.training_program import acting, published


@dataclass(frozen=True)
class Route:
    """The route of one channel of a plan. Senders are numbered `p`, receivers `q`."""

    plan: Plan
    channel: Channel
    shards: Shards | None = None
    """How params are cut, where a server of several shards is at one end."""
    whole: Any = None
    """What receivers of params want, in shape."""
    values: Values = ARRAYS

    @property
    def senders(self) -> int:
        """Replicas that send."""
        return self.plan.fragments[self.channel.source].replicas

    @property
    def receivers(self) -> int:
        """Replicas that receive."""
        return self.plan.fragments[self.channel.target].replicas

    @property
    def axis(self) -> int:
        """The axis on which groups lie."""
        return SLOTS[self.channel.slot].axis

    def made(self, p: int) -> tuple[int, ...]:
        """Groups that sender `p` holds."""
        return self.plan.fragments[self.channel.source].held(self.channel.made_by)[p]

    def wanted(self, q: int) -> tuple[int, ...]:
        """Groups that receiver `q` holds."""
        return self.plan.fragments[self.channel.target].held(self.channel.wanted_by)[q]

    def offered(self, q: int) -> tuple[int, ...]:
        """Groups of which receiver `q` gets some or all: those that it holds, or takes its batch from."""
        if isinstance(self.channel.discipline, FirstCome):
            return self.plan.fragments[self.channel.target].groups[q]
        return self.wanted(q)

    def common(self, p: int, q: int) -> Sequence[int]:
        """Positions, among the groups of sender `p`, of those that are for receiver `q`."""
        return self._common.get((p, q), ())

    @cached_property
    def _common(self) -> dict[tuple[int, int], list[int]]:
        """Sender and receiver -> those positions, for all that have any, in the order of senders and receivers."""
        holders: defaultdict[int, list[int]] = defaultdict(list)
        for q in range(self.receivers):
            for group in self.offered(q):
                holders[group].append(q)
        found: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for p in range(self.senders):
            for k, group in enumerate(self.made(p)):
                for q in holders.get(group, ()):
                    found[p, q].append(k)
        return {ends: found[ends] for ends in sorted(found)}

    @cached_property
    def _ends(self) -> tuple[list[list[int]], list[list[int]]]:
        """The receivers of each sender, and the senders of each receiver, by the groups that they have in common."""
        readers: list[list[int]] = [[] for _ in range(self.senders)]
        writers: list[list[int]] = [[] for _ in range(self.receivers)]
        for p, q in self._common:
            readers[p].append(q)
            writers[q].append(p)
        return readers, writers

    def linked(self, p: int, q: int) -> bool:
        """Whether sender `p` has anything for receiver `q`."""
        match self.channel.route:
            case RouteKind.RESHARD | RouteKind.AGENTS:
                return (p, q) in self._common
            case RouteKind.COPY:
                return p == q % self.senders
            case _:
                return True

    def readers(self, p: int) -> Sequence[int]:
        """Receivers that sender `p` has something for, in order."""
        match self.channel.route:
            case RouteKind.RESHARD | RouteKind.AGENTS:
                return self._ends[0][p]
            case RouteKind.COPY:
                return range(p, self.receivers, self.senders)
            case _:
                return range(self.receivers)

    def writers(self, q: int) -> Sequence[int]:
        """Senders that have something for receiver `q`, in order."""
        match self.channel.route:
            case RouteKind.RESHARD | RouteKind.AGENTS:
                return self._ends[1][q]
            case RouteKind.COPY:
                return (q % self.senders,)
            case _:
                return range(self.senders)

    def reader(self, p: int, q: int) -> int:
        """Number of receiver `q` among the readers of its link from sender `p`."""
        return 0 if self.channel.link_per_receiver else bisect_left(self.readers(p), q)

    def lane(self, p: int, q: int) -> int:
        """Number of the link from sender `p` to receiver `q`: one for all of its receivers, or one for each."""
        return p * self.receivers + q if self.channel.link_per_receiver else p

    def lanes(self) -> dict[int, tuple[int, Sequence[int]]]:
        """All links: sender and receivers of each."""
        if self.channel.link_per_receiver:
            return {self.lane(p, q): (p, (q,)) for p in range(self.senders) for q in self.readers(p)}
        return {p: (p, readers) for p in range(self.senders) if (readers := self.readers(p))}

    def carried(self, lane: int) -> int:
        """Groups in a message of a link."""
        if self.channel.link_per_receiver:
            return len(self.common(*divmod(lane, self.receivers)))
        return len(self.made(lane))

    def taken(self, p: int, q: int, value: Any) -> Any:
        """The part of a message from sender `p` that is for receiver `q`."""
        return value if self.channel.link_per_receiver else self.part(p, q, value)

    def part(self, p: int, q: int, value: Any) -> Any:
        """The part of sender `p`'s value that is for receiver `q`."""
        match self.channel.route:
            case RouteKind.SCATTER:
                return self._shard(value, q)
            case RouteKind.RESHARD | RouteKind.AGENTS:
                mine = self.common(p, q)
                if len(mine) == len(self.made(p)):
                    return value
                return self.groups(value, slice(mine[0], mine[-1] + 1))
            case _:
                return value

    def groups(self, value: Any, part: slice) -> Any:
        """Some of the groups of a value."""
        return self.values.slice(value, self.axis, part)

    def merge(self, parts: dict[int, Any]) -> Any:
        """Put together what a receiver got from each sender, in the senders' order."""
        values = [parts[p] for p in sorted(parts)]
        match self.channel.route:
            case RouteKind.RESHARD | RouteKind.GATHER:
                return self.values.join(values, self.axis)
            case RouteKind.AGENTS:
                return self.values.join(values, self.axis + 2)
            case RouteKind.MEAN | RouteKind.SCATTER:
                return self.values.mean(values, [len(self.made(p)) for p in sorted(parts)])
            case RouteKind.SUM:
                return self.values.sum(values)
            case RouteKind.JOIN:
                assert self.shards is not None
                return self.shards.join(values, self.whole)
            case _:
                return values[0]

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
