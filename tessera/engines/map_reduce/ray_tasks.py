"""Maps items as Ray tasks, wherever the cluster has room."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from tessera.channels.packing import pack, unpack
from tessera.engines.driver.pool import process_environment
from tessera.engines.map_reduce.base import Call, ItemQueue, MapOptions, map_item
from tessera.engines.replica.entry_point import describe_failure
from tessera.errors import TesseraError
from tessera.graph.plan import Placement

LOOK_SECONDS = 0.5


@ray.remote
def _map(path: tuple[str, ...], call: Call, item: bytes) -> bytes:
    """Map one item; an error is part of the result, so that Ray need not pickle it."""
    sys.path.extend(p for p in path if p not in sys.path)
    try:
        function = call.import_in_worker()
    except TesseraError as error:
        return pack({**describe_failure(error), "kind": "raised"}, {})
    meta, arrays = unpack(item)
    return pack(*map_item(function, meta["item"], arrays))


@dataclass(frozen=True)
class _Task:
    number: int
    deadline: float
    """When it counts as lost, on the clock of `time.monotonic`."""


def map_on_ray(queue: ItemQueue, call: Call, options: MapOptions) -> None:
    """Map items as tasks. Ray's own retries are off, so that losses are counted in one place."""
    if call.name.startswith("__main__:"):
        raise TesseraError(f"map {call.name.partition(':')[2]} is in the script itself: move it to a module for Ray")
    limit = options.workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
    variables = process_environment(Placement(operators=("map",), groups=((0,),)))
    variables |= {name: os.environ[name] for name in ("TESSERA_CACHE",) if name in os.environ}
    remote = _map.options(num_cpus=1, max_retries=0, runtime_env={"env_vars": variables})
    shared, path = ray.put(call), tuple(sys.path)
    running: dict[Any, _Task] = {}
    try:
        while not queue.done:
            while len(running) < limit and (number := queue.take()) is not None:
                plain, arrays = queue.item(number)
                deadline = time.monotonic() + (options.timeout or float("inf"))
                running[remote.remote(path, shared, pack({"item": plain}, arrays))] = _Task(number, deadline)
            ready, _ = ray.wait(list(running), num_returns=1, timeout=LOOK_SECONDS)
            for ref in ready:
                _receive(queue, running.pop(ref).number, ref)
            for ref in [ref for ref, task in running.items() if time.monotonic() > task.deadline]:
                ray.cancel(ref, force=True)
                queue.record_loss(running.pop(ref).number, f"did not finish within {options.timeout:g} s")
    finally:
        for ref in running:
            ray.cancel(ref, force=True)


def _receive(queue: ItemQueue, number: int, ref: Any) -> None:
    try:
        outcome = ray.get(ref)
    except RayError as error:
        queue.record_loss(number, f"was lost ({type(error).__name__}: {str(error).strip().splitlines()[0]:.120})")
        return
    queue.record_outcome(number, *unpack(outcome))
