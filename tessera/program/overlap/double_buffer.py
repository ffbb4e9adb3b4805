"""Host environments in two halves: one half steps, in a thread, while actions are chosen for the other.

Environments are independent of each other, so this changes nothing but the time. It pays where stepping lets other
threads run (simulators in C++), and only such environments are opened in halves.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from tessera.envs.base import HostEnvironment, HostVector, Timestep
from tessera.program.nodes import HOST, SLOTS, Node, Op, Repeat, Segment, effects
from tessera.program.overlap.slot_slices import cut_out, joined, stack, whole

Slots = dict[str, Any]


class Halves(HostVector):
    """Two vectors of environments that can be stepped together, or each by itself."""

    def __init__(self, parts: tuple[HostVector, HostVector], groups: tuple[int, int]) -> None:
        self.parts, self.groups = parts, groups
        self.stepper = ThreadPoolExecutor(1, thread_name_prefix="tessera-stepper")

    def reset(self) -> Timestep:
        """Start every environment."""
        return joined([part.reset() for part in self.parts], 0)

    def step(self, actions: np.ndarray) -> Timestep:
        """Play one step in every environment."""
        both = (actions[: self.groups[0]], actions[self.groups[0] :])
        return joined([part.step(mine) for part, mine in zip(self.parts, both, strict=True)], 0)

    def close(self) -> None:
        """Close both."""
        self.stepper.shutdown()
        for part in self.parts:
            part.close()


def open_environments(env: HostEnvironment, ids: np.ndarray, seed: int) -> HostVector:
    """Open environments, in halves where that pays and there is more than one group."""
    if not env.threaded or len(ids) < 2 or len(os.sched_getaffinity(0)) < 2:
        return env.open(ids, seed)
    half = len(ids) // 2
    return Halves((env.open(ids[:half], seed), env.open(ids[half:], seed)), (half, len(ids) - half))


def in_halves(node: Repeat, slots: Slots) -> bool:
    """Whether a loop can be run in halves: its environments are open so, and nothing in it is exchanged."""
    return isinstance(slots.get("env_state"), Halves) and all(isinstance(n, Op | Segment) for n in node.body)


def run_in_halves(node: Repeat, slots: Slots, call: Callable[[Node, Slots], None]) -> None:
    """Run a loop over steps: `call` runs one node on one half's slots."""
    vector: Halves = slots["env_state"]
    reads, writes = effects(node.body)
    used = [s for s in (reads | writes) if s in slots and s in SLOTS]
    cuts = (slice(0, vector.groups[0]), slice(vector.groups[0], None))
    halves = [{s: cut_out(s, slots[s], cut) for s in used} for cut in cuts]
    for half, part in zip(halves, vector.parts, strict=True):
        half["env_state"] = part
    stacks: list[dict[str, list[Any]]] = [{out: [] for out in node.stacks.values()} for _ in halves]
    turns = [_turns(node, half, mine, call) for half, mine in zip(halves, stacks, strict=True)]
    stepping: list[Future[None] | None] = [None, None]
    running = [0, 1]
    while running:
        for k in list(running):
            waited = stepping[k]
            if waited is not None:
                waited.result()
            try:
                stepping[k] = vector.stepper.submit(next(turns[k]))
            except StopIteration:
                running.remove(k)
    for s in writes - {"env_state"}:
        if all(s in half for half in halves):
            slots[s] = whole(s, [half[s] for half in halves])
    for s, out in node.stacks.items():
        slots.pop(s, None)
        rows = [stack(mine[out], SLOTS[out].stack) for mine in stacks if mine[out]]
        if rows:
            slots[out] = joined(rows, SLOTS[out].axis)


def _turns(
    node: Repeat, slots: Slots, stacks: dict[str, list[Any]], call: Callable[[Node, Slots], None]
) -> Iterator[Callable[[], None]]:
    """Run one half's loop; yield what belongs into the stepping thread, and go on once it is done."""
    assert node.count is not None
    for step in range(node.count):
        slots[node.index] = np.int32(step)
        for hosted, run in itertools.groupby(node.body, lambda n: isinstance(n, Op) and n.kind == HOST):
            nodes = list(run)
            if hosted:
                yield partial(_call_all, nodes, slots, call)
            else:
                _call_all(nodes, slots, call)
        for s, out in node.stacks.items():
            if s in slots:
                stacks[out].append(slots.pop(s))


def _call_all(nodes: list[Node], slots: Slots, call: Callable[[Node, Slots], None]) -> None:
    for node in nodes:
        call(node, slots)
