"""What a call of Ray costs on this machine: measured between two actors of one node, once for all algorithms.

Between machines the network comes on top, which a cluster file describes.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tessera.channels.rpc.outbox import INLINE_BYTES
from tessera.engines.simulated.costs import LinkCosts
from tessera.errors import TesseraError
from tessera.profiling.profile import circumstances
from tessera.support.cache import cache_folder, caches_programs
from tessera.support.extras import install_hint
from tessera.support.files import read_json, write_json

SMALL, LARGE = 1 << 10, 1 << 20
"""Bytes of the messages that are sent: the small one travels within the call, the large one by the object store."""
CALLS = {SMALL: 300, LARGE: 60}
ROUND_TRIPS = 100
WARMUP = 20
AHEAD = 2
"""Calls that a sender does not wait for, as with the queues of replicas."""
FIELDS = ("latency", "cpu_per_message", "cpu_per_byte")


class CallMeter:
    """An actor that calls another one, and says how long its process has worked."""

    def take(self, data: bytes, *stored: np.ndarray) -> bytes:
        """Take a message, as a replica does that copies it into its inbox."""
        for content in stored:
            content.copy()
        return data[:0]

    def worked(self) -> float:
        """Seconds that cores have worked for this process, in all of its threads."""
        return time.process_time()

    def round_trip(self, other: Any, times: int) -> float:
        """Seconds of a call and its answer: half of them took as long, or longer."""
        import ray

        found = []
        for _ in range(times):
            begun = time.perf_counter()
            ray.get(other.take.remote(bytes(SMALL)))
            found.append(time.perf_counter() - begun)
        return statistics.median(found)

    def stream(self, other: Any, nbytes: int, times: int) -> None:
        """Send messages, as an outbox does."""
        import ray

        content = np.ones(nbytes, np.uint8)
        waiting: deque[Any] = deque()
        for _ in range(times):
            if nbytes < INLINE_BYTES:
                waiting.append(other.take.remote(content.tobytes()))
            else:
                waiting.append(other.take.remote(b"", ray.put(content)))
            if len(waiting) > AHEAD:
                ray.get(waiting.popleft())
        ray.get(list(waiting))


def check_ray() -> None:
    """Refuse to measure what is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise TesseraError(f"--ray needs Ray, which is not installed: run {install_hint('ray')}")


def measure_calls_of_ray(tell: Callable[[str], None]) -> LinkCosts:
    """Measure them on a Ray of its own, or on the node of a cluster on which this process is."""
    from tessera.engines.ray_backend import cluster

    address = cluster.prepare(None)
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from tessera.engines.ray import connect

    tell("Ray starts")
    connect(address, 2)
    try:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        make: Any = ray.remote(CallMeter).options(num_cpus=0, scheduling_strategy=here)
        one, other = make.remote(), make.remote()

        def worked() -> float:
            return sum(ray.get([one.worked.remote(), other.worked.remote()]))

        def work_of_a_call(nbytes: int) -> float:
            ray.get(one.stream.remote(other, nbytes, WARMUP))
            before = worked()
            ray.get(one.stream.remote(other, nbytes, CALLS[nbytes]))
            return (worked() - before) / 2 / CALLS[nbytes]

        tell("calls of Ray")
        small, large = work_of_a_call(SMALL), work_of_a_call(LARGE)
        latency = ray.get(one.round_trip.remote(other, ROUND_TRIPS)) / 2
    finally:
        ray.shutdown()
    return LinkCosts(latency=latency, cpu_per_message=small, cpu_per_byte=max(0.0, (large - small) / (LARGE - SMALL)))


def path_of_calls() -> Path | None:
    """The file of what calls of Ray cost on this machine; None if nothing is kept."""
    return cache_folder() / "calls_of_ray.json" if caches_programs() else None


def save_calls(found: LinkCosts) -> Path | None:
    """Keep what was measured: the file, or None if nothing is kept."""
    path = path_of_calls()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {name: getattr(found, name) for name in FIELDS}
        write_json(path, {"circumstances": _circumstances(), "calls": kept})
    return path


def saved_calls() -> LinkCosts | None:
    """What calls of Ray cost on this machine, if that was measured with the packages that there are now."""
    path = path_of_calls()
    if path is None or not path.is_file():
        return None
    found = read_json(path)
    try:
        calls = LinkCosts(**{name: float(found["calls"][name]) for name in FIELDS})
        fits = all(0 <= seconds < 10 for seconds in asdict(calls).values())
        known = dict(found["circumstances"])
    except (KeyError, TypeError, ValueError):
        fits = False
    if not fits:
        raise TesseraError(f"{path} does not say what calls of Ray cost: delete it, or run `tessera profile … --ray`")
    return calls if known == _circumstances() else None


def in_words(calls: LinkCosts) -> str:
    """What they cost, for a person."""
    return (
        f"{1e6 * calls.latency:.0f} µs on the way, {1e6 * calls.cpu_per_message:.0f} µs of a core at each end, "
        f"and {1e3 * calls.cpu_per_byte * 2**20:.1f} ms more for a megabyte"
    )


def _circumstances() -> dict[str, str]:
    """What calls of Ray depend on."""
    now = circumstances()
    return {name: now[name] for name in ("processor", "cores", "python", "tessera")} | {
        "ray": importlib.metadata.version("ray") if importlib.util.find_spec("ray") else "missing"
    }
