"""Groups of environments: how many there are, and which replica holds which."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from tessera.errors import TesseraError
from tessera.graph.policy import Policy

DEFAULT_GROUPS = 8


@dataclass(frozen=True)
class Needs:
    """All that a plan depends on of an algorithm and an environment."""

    algorithm: str
    env: str
    device_env: bool
    batch: int | None
    """Rows per draw of a replay; None for a queue."""
    priorities: bool
    absorbs: bool
    agents: int = 0
    """Agents that have params of their own; 0: one agent, or agents that share params."""
    together: int = 1
    """Neighbouring environments that must be in the same group."""
    layerwise: str = ""
    """How `apply` treats whole layers; empty if it is element-wise."""
    applies: int = 1
    """Gradients that one update applies."""
    wrappers: tuple[str, ...] = ()
    """What is put around the environment, in words."""


def deal(groups: int, replicas: int) -> tuple[tuple[int, ...], ...]:
    """Deal groups to replicas in contiguous ranges whose sizes differ by one at most."""
    edges = [round(i * groups / replicas) for i in range(replicas + 1)]
    return tuple(tuple(range(a, b)) for a, b in itertools.pairwise(edges))


def usable(available: int, envs: int, together: int = 1) -> int:
    """The most of the available devices over which the environments divide evenly."""
    return max([d for d in range(1, min(available, envs) + 1) if envs % (d * together) == 0], default=1)


def divisors(number: int) -> list[int]:
    """All divisors, in order."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def count_groups(policy: Policy, needs: Needs, envs: int, requested: int | None, devices: list[int]) -> tuple[int, int]:
    """The number of groups, as requested or near the default, and how many of them an update learns from."""
    batch, together = needs.batch, needs.together
    holding = [(f, d) for f, d in zip(policy.fragments, devices, strict=True) if f.names != ("apply",)]
    holders = max(f.runs * d if f.by == "groups" else d for f, d in holding)
    cut, first, actors = policy.cut("experience"), 1, 1
    if cut.mode == "first":
        first, actors = cut.first, policy.replicas("act")
    stores = policy.replicas("store")
    learners = max(stores, policy.replicas("grad"))

    def learned_of(groups: int) -> int:
        return cut.take or groups // actors * first

    def fits(groups: int) -> bool:
        learned = learned_of(groups)
        fewer = actors > 1 or cut.take > 0
        even = groups % actors == 0 and (learners if fewer else 1) <= learned <= groups
        if cut.take and even:  # nobody may wait for more groups than it is linked to
            pairs = zip(deal(learned, stores), deal(groups, stores), strict=True)
            even = all(len(taken) <= len(offered) for taken, offered in pairs)
        drawn = not (batch and even and (batch % learned or groups % learned))
        placed = groups >= holders and all(groups % d == 0 and (not cut.take or learned % d == 0) for d in devices)
        return envs % (groups * together) == 0 and placed and even and drawn

    limits = f" (multiples of {actors}, to wait for {first} of {actors} actors)" if actors > 1 else ""
    limits += f" (an update takes {cut.take} of them, to {learners} learners)" if cut.take else ""
    limits += " (for a replay, a multiple of those that an update learns from)" if batch and limits else ""
    limits += f" ({needs.algorithm} needs {together} environments together)" if together > 1 else ""
    rows = f", a draw of {batch} rows" if batch else ""
    options = [groups for groups in divisors(envs) if fits(groups)]
    if requested is not None and requested not in options:
        raise TesseraError(
            f"--groups {requested} does not fit {envs} environments{rows}, {holders} replicas, {max(devices)} devices"
            f"{limits}: it must divide environments{' and rows' if batch else ''}, be a multiple of the devices "
            "and be at least the replicas"
        )
    if not options:
        raise TesseraError(
            f"{envs} environments{rows} cannot be dealt into {holders} or more equal groups on {max(devices)} devices"
            f"{limits}: choose numbers that share a divisor of at least that size"
        )
    below = [groups for groups in options if groups <= DEFAULT_GROUPS]
    chosen = requested or (max(below) if below else min(options))
    return chosen, learned_of(chosen)
