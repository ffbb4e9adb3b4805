"""All colourings of the five operators, with numbers of replicas and devices, as policies."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tessera.graph.colouring import make_colouring
from tessera.graph.operators import OPERATORS
from tessera.graph.policy import Fragment, Policy

Partition = tuple[tuple[str, ...], ...]
"""Which operators are together: fragments, each with its operators, in the order of the graph."""

MANY = 64
"""Replicas of a fragment, above which fewer numbers are tried."""


class Colouring(NamedTuple):
    """A policy in the making: cheaper than a policy, which is checked, and there are thousands."""

    partition: Partition
    sizes: tuple[tuple[int, int], ...]
    """Replicas of each fragment, and devices of each replica."""
    asynchronous: bool = False
    gather: bool = False
    """Whether every replica learns from all experience."""

    @property
    def processes(self) -> int:
        """Replicas of all fragments."""
        return sum(replicas for replicas, _ in self.sizes)

    @property
    def order(self) -> tuple[int, int]:
        """Of two that are as good, the one with fewer fragments, then with fewer processes, is preferred."""
        return len(self.partition), self.processes

    def policy(self) -> Policy:
        """The policy."""
        fragments = [
            Fragment(" ".join(operators), replicas=replicas, devices=devices)
            for operators, (replicas, devices) in zip(self.partition, self.sizes, strict=True)
        ]
        return make_colouring(fragments, asynchronous=self.asynchronous, gather=self.gather)


@dataclass(frozen=True)
class Limits:
    """Up to which numbers colourings are tried."""

    groups: int
    """Groups of environments; no fragment has more replicas."""
    cores: int
    accelerators: int = 0
    shared: bool = True
    """Whether there may be more processes than cores; on a cluster each has one for itself."""

    def replicas(self, operators: Sequence[str]) -> list[int]:
        """Numbers of replicas of a fragment: powers of two, or of four if there are many, and the largest.

        Environments may sleep, so that more of their processes than cores can pay. Nothing else does.
        """
        sleeps = "env" in operators and self.shared
        most = self.groups if sleeps else min(self.groups, max(self.cores, self.accelerators))
        step = 2 if most > MANY else 1
        return sorted({most, *(2**k for k in range(0, most.bit_length(), step) if 2**k <= most)})

    def devices(self, operators: Sequence[str], replicas: int) -> list[int]:
        """Devices over which each replica spreads what it learns; virtual ones would share the cores of one."""
        if "grad" not in operators or self.accelerators < 2:
            return [1]
        return [d for d in range(1, self.accelerators // replicas + 1) if self.groups % (d * replicas) == 0] or [1]


def partitions(operators: Sequence[str] = tuple(OPERATORS)) -> Iterator[Partition]:
    """Every way to put operators together, from all in one fragment to each in its own."""
    yield from sorted(_partitions(tuple(operators)), key=len)


def colourings(partition: Partition, limits: Limits, asynchronous: bool = False) -> Iterator[Colouring]:
    """Every colouring with these fragments, by numbers of replicas and devices.

    Synchronous ones wait for everything, so they learn the same. Among them are those of which every replica learns
    from all experience. Of asynchronous ones there are only those with something that need not be waited for.
    """
    if asynchronous and not may_be_asynchronous(partition):
        return
    choices = [
        [(r, d) for r in limits.replicas(operators) for d in limits.devices(operators, r)] for operators in partition
    ]
    for sizes in itertools.product(*choices):
        yield Colouring(partition, sizes, asynchronous)
        if not asynchronous and len(partition) == 1 and sizes[0][0] > 1:
            yield Colouring(partition, sizes, gather=True)


def may_be_asynchronous(partition: Partition) -> bool:
    """Whether anything crosses between fragments that need not be waited for: experience or gradients.

    A server that applies gradients as they come has to be there when they do, so it does nothing else.
    """
    home = {operator: fragment for fragment in partition for operator in fragment}
    if home["grad"] != home["apply"]:
        return home["apply"] == ("apply",)
    return home["act"] != home["store"]


def _partitions(operators: tuple[str, ...]) -> Iterator[Partition]:
    """Put the last operator into each fragment of those before it, or into one of its own."""
    if not operators:
        yield ()
        return
    *before, last = operators
    for smaller in _partitions(tuple(before)):
        for k in range(len(smaller)):
            yield (*smaller[:k], (*smaller[k], last), *smaller[k + 1 :])
        yield (*smaller, (last,))
