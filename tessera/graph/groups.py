"""Groups: into how many the environments are dealt, and which replica gets which."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from tessera.errors import TesseraError
from tessera.graph.policy import Policy

DEFAULT_GROUPS = 8


@dataclass(frozen=True)
class Needs:
    """What the graph must know about an algorithm and an environment; nothing else of them matters here."""

    algorithm: str
    env: str
    device_env: bool
    batch: int | None
    """Rows per draw of a replay; None for a queue."""
    priorities: bool
    absorbs: bool
    agents: int = 0
    """Agents that have params of their own; 0: there is one, or they share."""
    together: int = 1
    """Neighbouring environments that no group may part."""
    layerwise: str = ""
    """How `apply` looks at whole layers, if it does."""


def deal(groups: int, replicas: int) -> tuple[tuple[int, ...], ...]:
    """Deal groups to replicas in contiguous ranges whose sizes differ by one at most."""
    edges = [round(i * groups / replicas) for i in range(replicas + 1)]
    return tuple(tuple(range(a, b)) for a, b in itertools.pairwise(edges))


def usable(available: int, envs: int, together: int = 1) -> int:
    """As many devices as there are, less those that no environment is left for."""
    return max([d for d in range(1, min(available, envs) + 1) if envs % (d * together) == 0], default=1)


def count_groups(policy: Policy, needs: Needs, envs: int, asked: int | None, devices: list[int]) -> tuple[int, int]:
    """How many groups, and how many of them an update learns from: as asked, or the largest count near the default."""
    batch, together = needs.batch, needs.together
    sharing = [(f, d) for f, d in zip(policy.fragments, devices, strict=True) if f.names != ("apply",)]
    units = max(f.runs * d if f.by == "groups" else d for f, d in sharing)
    waited, actors = 1, 1
    if policy.cut("experience").mode == "first":
        waited, actors = policy.cut("experience").first, policy.replicas("act")
    learners = max(policy.replicas("store"), policy.replicas("grad"))

    def fits(g: int) -> bool:
        even = g % actors == 0 and g // actors * waited >= (learners if actors > 1 else 1)
        rows = not (batch and even and batch % (g // actors * waited))
        return envs % (g * together) == 0 and g >= units and all(g % d == 0 for d in devices) and even and rows

    share = f" (multiples of {actors}, to wait for {waited} of {actors} actors)" if actors > 1 else ""
    rows = f", a draw of {batch} rows" if batch else ""
    share += f" ({needs.algorithm} needs {together} environments together)" if together > 1 else ""
    options = [g for g in range(1, envs + 1) if fits(g)]
    if asked is not None and asked not in options:
        raise TesseraError(
            f"--groups {asked} does not fit {envs} environments{rows}, {units} replicas, {max(devices)} devices{share}"
            ": it must divide the first two, be a multiple of the devices and be at least the replicas"
        )
    if not options:
        raise TesseraError(
            f"{envs} environments{rows} cannot be dealt into {units} or more equal groups on {max(devices)} devices"
            f"{share}: choose numbers that share a divisor of at least that size"
        )
    below = [g for g in options if g <= DEFAULT_GROUPS]
    chosen = asked or (max(below) if below else min(options))
    return chosen, chosen // actors * waited
