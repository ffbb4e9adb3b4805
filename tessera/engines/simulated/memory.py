"""What a process of a plan holds in memory, and whether nodes have as much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tessera.engines.simulated.deployment import Deployment
from tessera.errors import TesseraError
from tessera.graph.plan import Plan
from tessera.program.nodes import SLOTS, Node, effects
from tessera.program.shapes import Shapes
from tessera.support.sizes import size_in_words
from tessera.support.trees import bytes_of

ACTIVATIONS = 2
"""Bytes of a running program for each byte that it makes anew: gradients and what networks compute in between."""
PLAYED = frozenset(["env_state", "timesteps", "memory", "observed", "actions", "trajectory", "episode"])
"""Slots of which a replica holds those of the environments that it plays."""


def array_bytes(sizes: Mapping[str, int], played: float, learned: float) -> int:
    """Bytes of the arrays of a replica that runs a program with such slots.

    Args:
        sizes: slot -> bytes of all of it.
        played: share of the environments that it plays.
        learned: share of the groups that it learns from.
    """
    total = 0.0
    for slot, size in sizes.items():
        kind = SLOTS.get(slot)
        share = 1.0 if kind is None or kind.layout != "groups" else played if slot in PLAYED else learned
        total += share * size * (1 if kind is not None and kind.persistent else ACTIVATIONS)
    return int(total)


def replica_bytes(plan: Plan, index: int, program: tuple[Node, ...], shapes: Shapes) -> int:
    """Bytes of the arrays of a replica of a fragment that runs a program; of the one that holds most."""
    fragment = plan.fragments[index]
    played = max(map(len, fragment.held("act"))) / max(plan.groups, 1)
    learned = max(map(len, fragment.held("grad"))) / max(plan.batches, 1)
    return array_bytes({s: bytes_of(shapes[s]) for s in set.union(*effects(program)) & shapes.keys()}, played, learned)


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
