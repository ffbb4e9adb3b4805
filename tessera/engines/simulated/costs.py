"""What work costs, in seconds: each Op and each segment by how many environments it is for, each message.

A segment that was timed as a whole costs what it did. Any other costs its dispatch and, for each Op in it, trips times
what the Op costs, times the factor of its kind: in one compiled program Ops are cheaper, or dearer, than alone.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from tessera.program.nodes import HOST, WIRING, Collective, Node, Op, Repeat, Segment

UNINFORMATIVE_SLOTS = frozenset(
    [
        *("root", "ids", "group_ids", "tensors", "acting", "view", "state", "memory", "env_state", "episode"),
        *("act_keys", "env_keys", "order", "t", "m", "e", "d"),
    ]
)
"""Slots that tell nothing of what an Op is for; nor do clocks."""

Curve = tuple[tuple[int, float], ...]
"""Environments and seconds, as measured, in order."""

Random = Callable[[], float]
"""Draws a number from 0 to 1."""

QUANTILES = 64
"""Calls that stand for all calls of one size, in order."""


class Work(NamedTuple):
    """One call."""

    seconds: float
    """How long it takes alone on the machine."""
    cpu_seconds: float
    """How long cores work for it: more than `seconds` if several threads do, less if it sleeps."""

    def times(self, factor: float) -> Work:
        """So many times the work."""
        return Work(self.seconds * factor, self.cpu_seconds * factor)


NO_WORK = Work(0.0, 0.0)


@dataclass(frozen=True)
class Timing:
    """Calls that were timed, for one number of environments and of threads."""

    envs: int
    threads: int
    calls: tuple[Work, ...]
    """Of a program that makes many updates, each is for one update."""

    @cached_property
    def quantiles(self) -> tuple[Work, ...]:
        """Calls from the fastest to the slowest, as many as QUANTILES."""
        ordered = sorted(self.calls)
        return tuple(ordered[int((k + 0.5) / QUANTILES * len(ordered))] for k in range(QUANTILES))


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
class ExchangeCosts:
    """What one end works for an exchange: all messages of one slot, which may come through several links."""

    fixed: float = 0.0
    per_link: float = 0.0
    per_byte: float = 0.0

    def cpu_seconds(self, links: int, nbytes: int) -> float:
        """Work on messages through so many links, with so many bytes in all."""
        return self.fixed + links * self.per_link + nbytes * self.per_byte


@dataclass(frozen=True)
class Costs:
    """What an algorithm costs in an environment on a kind of machine."""

    ops: Mapping[str, Curve] = field(default_factory=dict)
    """Name of an Op (`op_name`) -> seconds of one call, by environments; what is not named costs nothing."""
    dispatch: float = 0.0
    """Seconds to begin a segment."""
    links: LinkCosts = field(default_factory=LinkCosts)
    """Of messages within a machine whose exchange is not among `exchanges`."""
    exchanges: Mapping[str, ExchangeCosts] = field(default_factory=dict)
    """Exchange within a machine (`exchange_name`) -> what it costs at that end."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """Kind of a segment (`work_kind`) -> what the costs of its Ops are multiplied by; 1 if it is not named."""
    timings: Mapping[str, tuple[Timing, ...]] = field(default_factory=dict)
    """Name of a segment, or of an Op that Python calls (`node_name`) -> calls that were timed."""
    per_node: float = 0.0
    """Seconds that Python takes between two nodes."""
    wake: float = 0.0
    """Seconds that it takes a core to wake a replica that waits, and to look again for what it waits for."""
    wakes: Mapping[str, float] = field(default_factory=dict)
    """Slot -> the same for a replica that waits to exchange it, where runs on processes have told."""
    switch: float = 0.0
    """Seconds more that this takes while others keep all cores busy."""
    switches: Mapping[str, float] = field(default_factory=dict)
    """Slot -> the same for a replica that waits to exchange it, where runs on processes have told."""
    after_wait: Mapping[str, float] = field(default_factory=dict)
    """Name of a segment, an Op or an exchange -> by how much it takes longer as the first of its kind after a wait:
    cores have slept, and caches hold something else."""
    device_switches: Curve = ()
    """Processes that share an accelerator -> seconds that it takes to turn from the work of one to that of another; the
    same below and above the numbers that are known."""
    remote_links: LinkCosts = field(default_factory=LinkCosts)
    """Messages between machines, besides the network: serialising, a call of Ray, its object store."""
    slowdown: tuple[float, ...] = ()
    """How fast each of k = 1, 2, … threads runs beside the others, relative to its equal part of the cores."""
    process_memory: int = 0
    """Bytes of a process besides its arrays: Python, JAX and compiled programs."""
    fragment_memory: Mapping[str, int] = field(default_factory=dict)
    """The same for processes of fragments that were seen, by their operators, as in `env+act`."""

    def draw(self, node: Segment | Op, envs: int, count: int, threads: int, random: Random) -> Work:
        """The work of one call, for so many environments; a loop without a number of its own has `count` turns."""
        timed = self.timings.get(node_name(node))
        if timed is None:
            seconds = self.seconds(node, envs, count)
            return Work(seconds, seconds)
        calls = self._calls_of(node_name(node), timed, envs if depends_on_envs(node) else timed[0].envs, threads)
        turns = count if is_counted(node) else 1
        if turns == 1:
            return calls[int(random() * QUANTILES)]
        drawn = [calls[int(random() * QUANTILES)] for _ in range(turns)]
        return Work(sum(w.seconds for w in drawn), sum(w.cpu_seconds for w in drawn))

    def calls(self, node: Segment | Op, envs: int, threads: int) -> np.ndarray | None:
        """Seconds of calls, and those of cores, from the fastest to the slowest [2, calls]; None if none was timed."""
        name = node_name(node)
        timed = self.timings.get(name)
        if timed is None:
            return None
        envs = envs if depends_on_envs(node) else timed[0].envs
        key = name, envs, threads
        if key not in self._arrays:
            self._arrays[key] = np.asarray(self._calls_of(name, timed, envs, threads)).T
        return self._arrays[key]

    def exchange_seconds(self, slot: str, sends: bool, links: int, nbytes: int) -> float:
        """Work at one end of an exchange within a machine: through so many links, with so many bytes in all."""
        known = self.exchanges.get(exchange_name(slot, sends))
        if known is not None:
            return known.cpu_seconds(links, nbytes)
        return links * self.links.cpu_per_message + nbytes * self.links.cpu_per_byte

    def wake_for(self, slot: str, full: bool) -> float:
        """Seconds that it takes to wake a replica that waits to exchange a slot; `full`: while all cores are busy."""
        switch = self.switches.get(slot, self.switch) if full else 0.0
        return self.wakes.get(slot, self.wake) + switch

    def device_switch(self, processes: int) -> float:
        """Seconds that an accelerator, which so many processes share, takes to turn from the work of one to another."""
        if not self.device_switches:
            return 0.0
        known, seconds = zip(*self.device_switches, strict=True)
        return float(np.interp(processes, known, seconds))

    def process_bytes(self, operators: Collection[str]) -> int:
        """Bytes of a process with these operators besides its arrays; if none like it was seen, of the nearest."""
        own = set(operators)

        def distance(title: str) -> tuple[int, int]:
            return len(own ^ set(title.split("+"))), -self.fragment_memory[title]

        nearest = min(self.fragment_memory, key=distance, default=None)
        return self.process_memory if nearest is None else self.fragment_memory[nearest]

    def seconds(self, node: Node, envs: int, count: int) -> float:
        """Work of a segment or an Op, from its Ops."""
        match node:
            case Segment():
                return self.dispatch + self.seconds_of_ops(node, envs, count)
            case Repeat():
                trips = count if node.count is None else node.count
                return trips * sum(self.seconds(n, envs, count) for n in node.body)
            case Op():
                curve = self.ops.get(op_name(node), ())
                return interpolated(curve if depends_on_envs(node) else curve[:1], envs)
            case Collective():
                return 0.0
            case _:
                raise TypeError(f"no cost is defined for {node}")

    def seconds_of_ops(self, node: Segment | Op, envs: int, count: int) -> float:
        """Work of a segment or an Op without what it takes to begin it."""
        if isinstance(node, Op):
            return self.seconds(node, envs, count)
        factor = self.factors.get(work_kind(node), 1.0)
        return factor * sum(self.seconds(n, envs, count) for n in node.nodes)

    def device_seconds(self, node: Segment | Op, envs: int, count: int) -> float:
        """Work of an accelerator for a segment or an Op; infinite, so all of its time, if its Ops were not timed."""
        key = node_name(node), envs, count
        if key not in self._on_device:
            ops = [op_name(op) for op in (ops_in(node.nodes) if isinstance(node, Segment) else (node,))]
            known = all(name in self.ops for name in ops)
            self._on_device[key] = self.seconds_of_ops(node, envs, count) if known else math.inf
        return self._on_device[key]

    @cached_property
    def _on_device(self) -> dict[tuple[str, int, int], float]:
        return {}

    @cached_property
    def _known(self) -> dict[tuple[str, int, int], tuple[Work, ...]]:
        return {}

    @cached_property
    def _arrays(self) -> dict[tuple[str, int, int], np.ndarray]:
        return {}

    def _calls_of(self, name: str, timed: tuple[Timing, ...], envs: int, threads: int) -> tuple[Work, ...]:
        key = name, envs, threads
        if key not in self._known:
            self._known[key] = with_threads(timed, envs, threads)
        return self._known[key]


def exchange_name(slot: str, sends: bool) -> str:
    """The name of an exchange in a table of costs: `send params`, `receive gradients`."""
    return f"{'send' if sends else 'receive'} {slot}"


def op_name(op: Op) -> str:
    """The name of an Op in a table of costs: what it makes of what, as in `act observed -> actions`."""
    return _op_name(op.operator, op.reads, op.writes)


@lru_cache(maxsize=4096)
def _op_name(operator: str, reads: tuple[str, ...], writes: tuple[str, ...]) -> str:
    read = "+".join(slot for slot in reads if slot not in UNINFORMATIVE_SLOTS and not slot.endswith("_clock"))
    made = next((slot for slot in writes if slot not in ("memory", "env_state")), writes[0])
    return " ".join(filter(None, (operator, read, "->", made)))


def node_name(node: Segment | Op) -> str:
    """The name of a segment, or of an Op that Python calls: its Ops in order, with loops as in `32 x (...)`."""
    return op_name(node) if isinstance(node, Op) else _segment_name(node)


@lru_cache(maxsize=4096)
def _segment_name(segment: Segment) -> str:
    return _names(segment.nodes)


def _names(nodes: tuple[Node, ...]) -> str:
    found = []
    for node in nodes:
        if isinstance(node, Repeat):
            found.append(f"{'n' if node.count is None else node.count} x ({_names(node.body)})")
        elif isinstance(node, Op) and node.kind != WIRING:
            found.append(op_name(node))
        elif isinstance(node, Collective):
            found.append(f"{node.route} of {node.slot}")
    return "; ".join(found)


@lru_cache(maxsize=4096)
def work_kind(node: Segment | Op) -> str:
    """What a segment or an Op does: play, learn, or both."""
    operators = {op.operator for op in (ops_in(node.nodes) if isinstance(node, Segment) else (node,))}
    plays, learns = operators & {"env", "act"}, operators & {"store", "grad", "apply"}
    return "both" if plays and learns else "play" if plays else "learn"


def ops_in(nodes: tuple[Node, ...]) -> list[Op]:
    """All Ops, also those in loops, but for those that only pass values on."""
    found: list[Op] = []
    for node in nodes:
        if isinstance(node, Op) and node.kind != WIRING:
            found.append(node)
        elif isinstance(node, Repeat):
            found += ops_in(node.body)
        elif isinstance(node, Segment):
            found += ops_in(node.nodes)
    return found


@lru_cache(maxsize=4096)
def depends_on_envs(node: Segment | Op) -> bool:
    """Whether more environments are more work; applying gradients is the same work for any number."""
    return any(op.operator != "apply" for op in (ops_in(node.nodes) if isinstance(node, Segment) else (node,)))


def is_host(node: Segment | Op) -> bool:
    """Whether Python calls it, on a processor's core."""
    return isinstance(node, Op) and node.kind == HOST


def is_counted(node: Segment | Op) -> bool:
    """Whether one call makes as many updates as the engine says."""
    return isinstance(node, Segment) and any(isinstance(n, Repeat) and n.count is None for n in node.nodes)


def with_threads(timed: tuple[Timing, ...], envs: int, threads: int) -> tuple[Work, ...]:
    """Calls for so many environments and threads, from the fastest to the slowest.

    Between two numbers of threads that were timed, time falls as the part that is shared out; above, it stays.
    """
    tried = sorted({t.threads for t in timed})
    at = {n: for_envs([t for t in timed if t.threads == n], envs) for n in tried}
    if threads in at:
        return at[threads]
    below = [n for n in tried if n < threads]
    above = [n for n in tried if n > threads]
    if not below or not above:
        return at[below[-1] if below else above[0]]
    low, high = below[-1], above[0]
    share = (1 / low - 1 / threads) / (1 / low - 1 / high)
    return _between(at[low], at[high], share)


def for_envs(timed: list[Timing], envs: int) -> tuple[Work, ...]:
    """Calls for so many environments, from the fastest to the slowest, between those that were timed.

    Outside of them they follow the line through the nearest two, but never below half of the nearest.
    """
    points = sorted(timed, key=lambda t: t.envs)
    sizes = [t.envs for t in points]
    k = bisect.bisect_left(sizes, envs)
    if k < len(points) and sizes[k] == envs:
        return points[k].quantiles
    if len(points) == 1:
        ratio = max(envs / sizes[0], 0.5)
        return tuple(work.times(ratio) for work in points[0].quantiles)
    a, b = (points[k - 1], points[k]) if 0 < k < len(points) else (points[:2] if k == 0 else points[-2:])
    return _between(a.quantiles, b.quantiles, (envs - a.envs) / (b.envs - a.envs))


def _between(a: tuple[Work, ...], b: tuple[Work, ...], share: float) -> tuple[Work, ...]:
    """Between two sets of calls, quantile by quantile; 0 is the first, 1 the second."""

    def line(x: float, y: float) -> float:
        return max(x + (y - x) * share, 0.5 * min(x, y))

    return tuple(Work(*map(line, x, y)) for x, y in zip(a, b, strict=True))


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
