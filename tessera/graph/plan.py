"""A plan: a policy applied to one algorithm, one environment and the devices of this machine."""

from __future__ import annotations

import itertools
import os
from dataclasses import asdict, dataclass
from typing import Any

from tessera.errors import TesseraError
from tessera.graph.policy import ALL_DEVICES, Policy
from tessera.graph.streams import STREAMS, Stream, route

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


@dataclass(frozen=True)
class Placement:
    """A fragment with concrete numbers."""

    operators: tuple[str, ...]
    replicas: int
    devices: int
    platform: str
    groups: tuple[tuple[int, ...], ...]
    """Which groups of environments each replica holds."""

    @property
    def title(self) -> str:
        """How messages call it."""
        return "+".join(self.operators)


@dataclass(frozen=True)
class Channel:
    """A stream that crosses between replicas."""

    stream: str
    slot: str
    source: int
    target: int
    route: str
    rate: str
    lag: int = 0


@dataclass(frozen=True)
class Plan:
    """Concrete fragments, replicas, devices and channels: all that an engine needs besides the program."""

    policy: str
    reason: str
    algorithm: str
    env: str
    engine: str
    envs: int
    groups: int
    lag: int
    fragments: tuple[Placement, ...]
    channels: tuple[Channel, ...]

    @property
    def envs_per_group(self) -> int:
        """Environments in each group."""
        return self.envs // self.groups

    def home(self, operator: str) -> int:
        """Index of the fragment that holds `operator`."""
        return next(i for i, f in enumerate(self.fragments) if operator in f.operators)

    def to_json(self) -> dict[str, Any]:
        """Plain data, as saved in plan.json."""
        return asdict(self)


def deal(groups: int, replicas: int) -> tuple[tuple[int, ...], ...]:
    """Deal groups to replicas in contiguous ranges whose sizes differ by one at most."""
    edges = [round(i * groups / replicas) for i in range(replicas + 1)]
    return tuple(tuple(range(a, b)) for a, b in itertools.pairwise(edges))


def choose(device_env: bool, devices: int) -> tuple[str, str]:
    """Pick a policy where none is named: (name, why). The rule is in docs/design.md."""
    if device_env:
        where = f"all {devices} devices" if devices > 1 else "the one device"
        return "fused", f"fused, because the environment is pure JAX: one compiled program on {where}"
    return (
        "fused",
        "fused, because the environment runs on this one host: it steps while the update is computed",
    )


def make_plan(
    policy: Policy,
    needs: Needs,
    envs: int,
    *,
    groups: int | None = None,
    platform: str = "cpu",
    available: int = 1,
    reason: str = "named by the user",
    engine: str = "serial",
) -> Plan:
    """Apply `policy`; raise with asked versus available where it cannot be."""
    if envs < 1:
        raise TesseraError(f"--envs {envs}: at least one environment is needed")
    devices = [f.devices if f.devices != ALL_DEVICES else _usable(available, envs) for f in policy.fragments]
    for fragment, count in zip(policy.fragments, devices, strict=True):
        if count > available:
            raise TesseraError(
                f"fragment {fragment.title} asks for {count} devices, available: {available} ({platform})"
            )
    units = max(f.replicas * d for f, d in zip(policy.fragments, devices, strict=True) if f.names != ("apply",))
    total = _groups(envs, groups, units, devices, needs.batch)
    lag = policy.cut("params").lag
    lag = (0 if needs.device_env else 1) if lag is None else lag
    fragments = tuple(
        Placement(f.names, f.replicas, d, platform, deal(total, f.replicas))
        for f, d in zip(policy.fragments, devices, strict=True)
    )
    for f in fragments:
        if f.devices > 1 and any(len(g) % f.devices for g in f.groups):
            raise TesseraError(
                f"fragment {f.title}: {total} groups over {f.replicas} replicas of {f.devices} devices do not share "
                "out evenly: set --groups to a multiple of replicas × devices"
            )
    channels = tuple(c for s in STREAMS if (c := _channel(s, policy, needs, lag)) is not None)
    return Plan(policy.name, reason, needs.algorithm, needs.env, engine, envs, total, lag, fragments, channels)


def _usable(available: int, envs: int) -> int:
    """As many devices as there are, less those that no environment is left for."""
    return max(d for d in range(1, min(available, envs) + 1) if envs % d == 0)


def _groups(envs: int, asked: int | None, units: int, devices: list[int], batch: int | None) -> int:
    """How many groups: as asked, or the largest count near the default that everything divides."""

    def fits(g: int) -> bool:
        return envs % g == 0 and g >= units and all(g % d == 0 for d in devices) and not (batch and batch % g)

    if asked is not None:
        if asked < 1 or not fits(asked):
            rows = f", a draw of {batch} rows" if batch else ""
            raise TesseraError(
                f"--groups {asked} does not fit {envs} environments{rows}, {units} replicas, {max(devices)} devices: "
                "it must divide the first two, be a multiple of the devices and be at least the replicas"
            )
        return asked
    options = [g for g in range(1, envs + 1) if fits(g)]
    if not options:
        rows = f" and a draw of {batch} rows" if batch else ""
        raise TesseraError(
            f"{envs} environments{rows} cannot be dealt into {units} or more equal groups on {max(devices)} devices: "
            "choose numbers that share a divisor of at least that size"
        )
    below = [g for g in options if g <= DEFAULT_GROUPS]
    return max(below) if below else min(options)


def _channel(stream: Stream, policy: Policy, needs: Needs, lag: int) -> Channel | None:
    if stream.name == "priorities" and not needs.priorities:
        return None
    if (stream.name, stream.target) == ("summary", "apply") and not needs.absorbs:
        return None
    source, target = policy.home(stream.source), policy.home(stream.target)
    if stream.slot == "acting" and target == policy.home("grad"):
        return None  # a fragment with both receives params once, and act reads grad's
    if (stream.name, stream.target) == ("summary", "apply") and source == target:
        return None  # gathered for grad already
    found = route(stream, policy.fragments[source].replicas, policy.fragments[target].replicas, source == target)
    if found is None:
        return None
    return Channel(stream.name, stream.slot, source, target, found, stream.rate, lag if stream.slot == "acting" else 0)


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
