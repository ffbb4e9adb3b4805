"""What a process of a plan holds in memory, and whether nodes have as much."""

from __future__ import annotations

from collections import Counter

from tessera.engines.simulated.deployment import Deployment
from tessera.errors import TesseraError
from tessera.graph.plan import Plan
from tessera.program.nodes import SLOTS, Node, effects
from tessera.program.shapes import Shapes
from tessera.support.sizes import size_in_words
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


def refuse_too_little_memory(deployment: Deployment, memory: dict[str, int]) -> None:
    """Refuse a plan whose replicas do not fit into their nodes; `memory` has the bytes of one of each fragment."""
    held: list[Counter[int]] = [Counter() for _ in deployment.kinds]
    for (i, _, _), node in zip(deployment.plan.places, deployment.node_of, strict=True):
        held[node][i] += 1
    fragments = deployment.plan.fragments
    for kind, replicas in zip(deployment.kinds, held, strict=True):
        words = ", ".join(f"{count} × {fragments[i].title}" for i, count in replicas.items())
        on_device = [i for i in replicas if kind.accelerators and fragments[i].platform != "cpu"]
        asked = sum(count * memory[fragments[i].title] for i, count in replicas.items())
        shared = sum(replicas[i] * memory[fragments[i].title] for i in on_device) / max(kind.accelerators, 1)
        for what, needed, there in (
            ("memory", float(asked), kind.memory),
            ("memory of accelerators", shared, kind.accelerator_memory),
        ):
            if there and needed > there:
                raise TesseraError(
                    f"a node of kind {kind.name!r} has too little {what} for {words}: asked {size_in_words(needed)}, "
                    f"available {size_in_words(there)}: use fewer replicas a node, fewer environments, or other nodes"
                )
