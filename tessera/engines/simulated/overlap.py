"""Loops in slices in virtual time: double-buffered environments, and acting for whichever environments are ready.

The loops are those of `program/overlap`. Here the engine does their work: it steps a slice beside the program, and acts
for as many environments as are ready.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tessera.engines.simulated.programs import with_costs, without_costs
from tessera.engines.simulated.tokens import NOTHING, TOKENS, Token
from tessera.program.interfaces import Port
from tessera.program.nodes import SLOTS, Deferred, Node, Repeat, Segment, Slots, effects
from tessera.program.overlap.double_buffer import DoubleBufferedLoop, can_be_halved
from tessera.program.overlap.partial_segment import padded_size
from tessera.program.overlap.ready_batching import ReadyBatchedLoop, peers_of
from tessera.program.overlap.sliced_loop import Context, GroupSlice, Run, SlicedLoop


@dataclass(frozen=True)
class BeginStep(Deferred):
    """Host Ops of a slice, which the thread that steps runs after those that were begun before."""


@dataclass(frozen=True)
class StepDone(Deferred):
    """The program waits until host Ops of a slice, which were begun, are done."""


class VirtualOverlap:
    """Cuts the loops that other engines cut.

    Args:
        groups: of the replica.
        first_half: those of the first of two slices, if its environments are double-buffered; else 0.
    """

    def __init__(self, groups: int, first_half: int) -> None:
        self._groups, self._half = groups, first_half

    def split(self, context: Context, loop: Repeat, slots: Slots) -> SlicedLoop | None:
        """Cut a loop in two if its environments are double-buffered, or by its peers if they are batched."""
        plain, port = replace(loop, body=without_costs(loop.body)), context.port
        if self._half and can_be_halved(plain):
            self._fill(plain, slots)
            return VirtualDoubleBufferedLoop(plain, slots, (slice(0, self._half), slice(self._half, self._groups)))
        found = None if port is None else peers_of(plain, port)
        if port is None or found is None:
            return None
        self._fill(plain, slots)
        return VirtualReadyBatchedLoop(plain, slots, *found, port, context, self._groups)

    def _fill(self, loop: Repeat, slots: Slots) -> None:
        """Fill slots that are never empty elsewhere, where nothing is reset."""
        for slot in set.union(*effects(loop.body)):
            if slot not in slots and slot in SLOTS and SLOTS[slot].persistent:
                slots[slot] = replace(NOTHING, groups=self._groups)


class VirtualDoubleBufferedLoop(DoubleBufferedLoop):
    """Two slices that a thread in virtual time steps."""

    def __init__(self, loop: Repeat, slots: Slots, cuts: tuple[slice, slice]) -> None:
        super().__init__(loop, slots, cuts, TOKENS)
        self.loop = replace(self.loop, body=with_costs(self.loop.body))
        self._begun: dict[int, BeginStep] = {}

    def begin_step(self, k: int, nodes: tuple[Node, ...], run: Run) -> Iterator[Node]:
        """Have the engine begin host Ops."""
        self._begun[k] = BeginStep(nodes, self.slices[k])
        yield self._begun[k]

    def wait_for_step(self, k: int) -> Iterator[Node]:
        """Have the program wait."""
        if k in self._begun:
            yield StepDone(self._begun[k].nodes, self.slices[k])


class VirtualReadyBatchedLoop(ReadyBatchedLoop):
    """One slice for each peer; the engine acts for those that are ready, as one call."""

    def __init__(
        self,
        loop: Repeat,
        slots: Slots,
        peers: dict[int, slice],
        batching_seconds: float,
        port: Port,
        context: Context,
        groups: int,
    ) -> None:
        super().__init__(loop, slots, peers, batching_seconds, port, context, TOKENS)
        self.loop = replace(self.loop, body=with_costs(self.loop.body))
        self._groups = groups

    def run_batch(self, segment: Segment, ready: list[GroupSlice], run: Run) -> Iterator[Node]:
        """Have the engine run a segment for as many groups as a compiled one would be run for."""
        sizes = [len(range(*part.groups.indices(self._groups))) for part in ready]
        own = {s: _together([part.slots[s] for part in ready]) for s in ready[0].slots}
        batch = GroupSlice(slice(0, padded_size(sum(sizes), self._groups)), {**self.whole, **own})
        yield Deferred((segment,), batch)
        for slot in effects(segment.nodes)[1] & batch.slots.keys():
            made = batch.slots[slot]
            if slot in segment.donated:
                self.whole[slot] = replace(made, groups=self._groups)
                continue
            for part, size in zip(ready, sizes, strict=True):
                part.slots[slot] = TOKENS.slice(made, SLOTS[slot].axis, slice(0, size))


def _together(values: list[Token]) -> Token:
    """One token for those of several slices; what is no token is the same in all."""
    return TOKENS.join(values, 0) if isinstance(values[0], Token) else values[0]
