"""Whether a run does what was predicted of it, by a window that noise does not move."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from tessera.engines.replica.reports import Reports
from tessera.graph.plan import Plan
from tessera.planning.planner import Measured
from tessera.support.load import CoreTimes, core_times, used_by_others


@dataclass(frozen=True)
class DriftRule:
    """When a run has drifted: in nearly all blocks of a window its speed was off, and always to the same side.

    Were the true speed at the edge of what is tolerated, each block would be beyond it with an even chance, and nine of
    ten would be once in a hundred windows. A pause of a few seconds spoils one block.
    """

    tolerance: float = 0.25
    """Share of the predicted speed by which the measured one may differ."""
    block_seconds: float = 3.0
    """Seconds of a block, at the least: a block has whole calls of the engine."""
    blocks: int = 10
    """Blocks of a window: the newest ones."""
    outside: int = 9
    """Blocks of a window that must be beyond the tolerance."""


@dataclass
class Block:
    """What happened in a few seconds."""

    steps: int = 0
    updates: int = 0
    seconds: float = 0.0
    waits: Counter[str] = field(default_factory=Counter)
    """Seconds in which replicas of each fragment waited, by its title."""
    streams: Counter[str] = field(default_factory=Counter)
    """Seconds in which replicas waited for each stream."""

    def add(self, other: Block) -> None:
        """Add what happened in others."""
        self.steps += other.steps
        self.updates += other.updates
        self.seconds += other.seconds
        self.waits.update(other.waits)
        self.streams.update(other.streams)

    @property
    def steps_per_second(self) -> float:
        """Its speed."""
        return self.steps / max(self.seconds, 1e-9)

    def measured(self, plan: Plan, others: float | None) -> Measured:
        """The same, as a planner knows it."""
        seconds, one_thread = max(self.seconds, 1e-9), plan.engine == "serial"
        busy = {f.title: max(0.0, 1 - self.waits[f.title] / (f.replicas * seconds)) for f in plan.fragments}
        return Measured(
            steps_per_second=self.steps_per_second,
            updates_per_second=self.updates / seconds,
            busy={} if one_thread else busy,
            waits={stream: waited / seconds for stream, waited in self.streams.items()},
            other_cores=others,
        )


def block_of(reports: Reports, seconds: float) -> Block:
    """What happened in one call of the engine."""
    streams = {stream: flow.wait_seconds for stream, flow in reports.flows.items() if flow.wait_seconds}
    waits = Counter({title: sum(seconds.values()) for title, seconds in reports.waits.items()})
    steps, updates = int(reports.tally.steps.sum()), len(reports.tally.steps)
    return Block(steps, updates, seconds, waits, Counter(streams))


class DriftWindow:
    """The newest blocks of a run under one plan, and all of them together."""

    def __init__(self, rule: DriftRule, plan: Plan, predicted: float) -> None:
        """`predicted` is the speed of the plan, in steps per second."""
        self._rule, self._plan, self._predicted = rule, plan, predicted
        self._blocks: deque[tuple[Block, CoreTimes | None]] = deque(maxlen=rule.blocks)
        """With the core times at the end of each, where it was off."""
        self._open = Block()
        self.whole = Block()
        """All that was measured."""

    def add(self, call: Block) -> bool:
        """Add a call of the engine; whether that completes a block."""
        self.whole.add(call)
        self._open.add(call)
        if self._open.seconds < self._rule.block_seconds:
            return False
        off = abs(self._share(self._open)) > self._rule.tolerance
        here = self._plan.engine != "ray"  # machines of a cluster have cores of their own
        self._blocks.append((self._open, core_times() if off and here else None))
        self._open = Block()
        return True

    def drift(self) -> float | None:
        """By which share of the prediction the window's speed differs, if the run has drifted from it."""
        shares = [self._share(block) for block, _ in self._blocks]
        for side in (1, -1):
            off = sum(side * share > self._rule.tolerance for share in shares)
            if len(shares) == self._rule.blocks and off >= self._rule.outside:
                return self._share(self._sum())
        return None

    def measured(self) -> Measured:
        """What was measured in the window."""
        times = [at for _, at in self._blocks if at is not None]
        others = used_by_others(times[0], times[-1]) if len(times) > 1 else None
        return self._sum().measured(self._plan, others)

    def _share(self, block: Block) -> float:
        return block.steps_per_second / self._predicted - 1

    def _sum(self) -> Block:
        total = Block()
        for block, _ in self._blocks:
            total.add(block)
        return total
