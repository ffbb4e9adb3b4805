"""Memory of each process of a plan, by a rough estimate, and whether it is there."""

from __future__ import annotations

from typing import NamedTuple

from tessera.engines.simulated.memory import array_bytes
from tessera.planning.colourings import Colouring
from tessera.planning.demands import Template
from tessera.planning.workload import Workload, share_of

PROCESS_BYTES = 450 * 2**20
"""What a process takes before it has any arrays: Python, JAX and compiled programs."""
GB = 2**30


class Footprint(NamedTuple):
    """Bytes of one replica of a fragment."""

    title: str
    replicas: int
    process: int
    """Of the machine's own memory."""
    device: int
    """Of an accelerator's memory."""


def footprints_of(workload: Workload, colouring: Colouring, template: Template) -> list[Footprint]:
    """What the replicas of each fragment take."""
    groups, on_device = workload.reference.groups, bool(workload.machine.accelerators)
    found = []
    sized = zip(colouring.partition, colouring.sizes, template.programs, strict=True)
    for operators, (replicas, devices), program in sized:
        held = share_of(groups, replicas) / groups / devices
        arrays = array_bytes({slot: workload.slot_bytes.get(slot, 0) for slot in program.slots}, held, held)
        process = (workload.costs.process_bytes(operators) or PROCESS_BYTES) + (0 if on_device else arrays)
        found.append(Footprint("+".join(operators), replicas, process, arrays if on_device else 0))
    return found


def shortage(workload: Workload, footprints: list[Footprint]) -> str:
    """Which memory does not suffice, asked versus available; empty if it does."""
    machine = workload.machine
    parts = " and ".join(f"{f.replicas} × {f.process / GB:,.1f} GB for {f.title}" for f in footprints)
    asked = sum(f.replicas * f.process for f in footprints)
    if asked > machine.memory:
        return f"it takes {parts}, in all {asked / GB:,.1f} GB; available: {machine.memory / GB:,.1f} GB"
    if machine.accelerators:
        asked = sum(f.replicas * f.device for f in footprints) // machine.accelerators
        if asked > machine.accelerator_memory:
            there = machine.accelerator_memory / GB
            return f"it takes {asked / GB:,.1f} GB of each accelerator's memory; available: {there:,.1f} GB"
    return ""
