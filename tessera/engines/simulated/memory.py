"""What a process of a plan holds in memory."""

from __future__ import annotations

from tessera.graph.plan import Plan
from tessera.program.nodes import SLOTS, Node, effects
from tessera.program.shapes import Shapes
from tessera.support.trees import bytes_of

ACTIVATIONS = 2
"""Bytes of a running program for each byte of its slots: gradients and what networks compute in between."""


def process_bytes(plan: Plan, index: int, program: tuple[Node, ...], shapes: Shapes, base: int = 0) -> int:
    """Bytes of a replica of a fragment that runs a program, besides `base`: its slots, with its share of the groups."""
    fragment = plan.fragments[index]
    reads, writes = effects(program)
    total = 0.0
    for slot in (reads | writes) & shapes.keys():
        share = 1.0
        if slot in SLOTS and SLOTS[slot].layout == "groups":
            plays = slot in ("env_state", "timesteps", "memory", "observed", "actions", "trajectory", "episode")
            held, of = (fragment.held("act" if plays else "grad"), plan.groups if plays else plan.batches)
            share = max(map(len, held)) / max(of, 1)
        total += share * bytes_of(shapes[slot])
    return base + int(ACTIVATIONS * total)
