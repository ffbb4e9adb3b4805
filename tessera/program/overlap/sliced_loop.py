"""A loop over steps in slices of its groups, each at its own step.

Environments are independent of each other, and random numbers belong to a step of an environment, so the order in which
slices advance changes nothing but the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from tessera.envs.base import HostVector
from tessera.program.interfaces import Clock, Endpoint, Port, Tracer
from tessera.program.nodes import SLOTS, Deferred, Node, Repeat, Slots, effects
from tessera.program.overlap.slot_slices import TREES, SliceValues, merge_groups, slice_groups

Run = Callable[[tuple[Node, ...], Slots], None]
"""Runs nodes that exchange nothing."""


@dataclass(frozen=True)
class Context:
    """What a program runs with besides its slots."""

    port: Port | None = None
    tracer: Tracer | None = None
    clock: Clock = time.monotonic


@dataclass
class GroupSlice:
    """Some of a loop's groups."""

    groups: slice
    slots: Slots = field(default_factory=dict)
    port: Endpoint | None = None
    """What this slice exchanges through, if anything."""


class SlicedLoop:
    """A loop whose slots are cut into slices.

    Args:
        loop: the loop of each slice; `advance` runs the nodes in it that are `Deferred`.
        whole: the slots of all groups.
        cuts: the groups of each slice.
        uncut: slots that stay whole.
        values: how the values in slots are sliced and joined.
    """

    def __init__(
        self,
        loop: Repeat,
        whole: Slots,
        cuts: Iterable[slice],
        uncut: Collection[str] = (),
        values: SliceValues = TREES,
    ) -> None:
        self.loop, self.whole, self.values = loop, whole, values
        reads, writes = effects(loop.body)
        names = [s for s in reads | writes if s in whole and s in SLOTS and s not in uncut]
        self.slices = [GroupSlice(cut, {s: slice_groups(s, whole[s], cut, values) for s in names}) for cut in cuts]
        self._merged = [s for s in names if s in writes and not isinstance(whole[s], HostVector)]

    def advance(self, turns: list[Iterator[Node]], run: Run) -> Iterator[Node]:
        """Advance the loops of all slices to their end; yield an exchange when no slice can advance, and whatever an
        engine in virtual time has to run for a slice.

        Args:
            turns: the loop of each slice, which yields deferred nodes and exchanges that have to wait.
            run: runs deferred nodes.
        """
        raise NotImplementedError

    def merge(self) -> None:
        """Merge the slots of all slices, once their loops have ended."""
        for slot in self.loop.stacks:
            self.whole.pop(slot, None)
        for slot in (*self._merged, *self.loop.stacks.values()):
            if slot in self.slices[0].slots:
                self.whole[slot] = merge_groups(slot, [part.slots[slot] for part in self.slices], self.values)


def for_slice(node: Node, part: GroupSlice) -> Node:
    """A node that a slice yields and that its loop does not run: an engine in virtual time does, for this slice."""
    assert isinstance(node, Deferred), f"cannot be left to the engine: {node}"
    return replace(node, part=part)
