"""The resources of the cluster that this process is connected to."""

from __future__ import annotations

import time

import ray

from tessera.engines.ray_backend.capacity import Resources, check_capacity
from tessera.errors import TesseraError
from tessera.graph.plan import Plan

POLL_SECONDS = 0.2


def total_resources() -> list[Resources]:
    """All resources of each living node."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def free_resources() -> list[Resources]:
    """The free resources of each living node."""
    free = ray._private.state.available_resources_per_node()
    living = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    return [free[node] for node in living if node in free]


def wait_for_capacity(plan: Plan, seconds: float) -> None:
    """Wait until a plan fits, since a run that has just ended may still return resources; refuse it after that."""
    end = time.monotonic() + seconds
    while True:
        try:
            return check_capacity(plan, free_resources())
        except TesseraError:
            if time.monotonic() > end:
                raise
            time.sleep(POLL_SECONDS)
