"""Items that are mapped by Ray tasks, wherever the cluster has room."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from tessera.channels.packing import pack, unpack
from tessera.engines.driver.pool import wanted_environment
from tessera.engines.map_reduce.board import Board, Call, Terms, attempt
from tessera.engines.replica.entry_point import describe
from tessera.errors import TesseraError
from tessera.graph.plan import Placement

LOOK_SECONDS = 0.5


@ray.remote
def _map(path: tuple[str, ...], call: Call, item: bytes) -> bytes:
    """Map one item; what is raised is told, so that Ray has nothing to serialise."""
    sys.path.extend(p for p in path if p not in sys.path)
    try:
        function = call.find_there()
    except TesseraError as error:
        return pack({**describe(error), "kind": "raised"}, {})
    meta, arrays = unpack(item)
    return pack(*attempt(function, meta["item"], arrays))


@dataclass(frozen=True)
class _Task:
    number: int
    until: float
    """When it counts as lost, on the clock of `time.monotonic`."""


def map_on_ray(board: Board, call: Call, terms: Terms) -> None:
    """Work through a board with tasks; Ray does not try again by itself, so that losses are counted in one place."""
    if call.name.startswith("__main__:"):
        raise TesseraError(f"map {call.name.partition(':')[2]} is in the script itself: move it to a module for Ray")
    most = terms.workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
    variables = wanted_environment(Placement(operators=("map",), groups=((0,),)))
    variables |= {name: os.environ[name] for name in ("TESSERA_CACHE",) if name in os.environ}
    task = _map.options(num_cpus=1, max_retries=0, runtime_env={"env_vars": variables})
    shared, path = ray.put(call), tuple(sys.path)
    under_way: dict[Any, _Task] = {}
    try:
        while not board.over:
            while len(under_way) < most and (number := board.take()) is not None:
                plain, arrays = board.item(number)
                until = time.monotonic() + (terms.timeout or float("inf"))
                under_way[task.remote(path, shared, pack({"item": plain}, arrays))] = _Task(number, until)
            ready, _ = ray.wait(list(under_way), num_returns=1, timeout=LOOK_SECONDS)
            for ref in ready:
                _take_in(board, under_way.pop(ref).number, ref)
            for ref in [ref for ref, one in under_way.items() if time.monotonic() > one.until]:
                ray.cancel(ref, force=True)
                board.lose(under_way.pop(ref).number, f"did not finish within {terms.timeout:g} s")
    finally:
        for ref in under_way:
            ray.cancel(ref, force=True)


def _take_in(board: Board, number: int, ref: Any) -> None:
    try:
        told = ray.get(ref)
    except RayError as error:
        board.lose(number, f"was lost ({type(error).__name__}: {str(error).strip().splitlines()[0]:.120})")
        return
    board.tell(number, *unpack(told))
