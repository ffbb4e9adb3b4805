"""How fast messages cross between two processes: against memcpy, and against a call of a Ray actor.

    python benchmarks/transport.py
    python benchmarks/transport.py --ray PYTHON     # an interpreter that has benchmarks/requirements-ray.txt

Bandwidth is payload bytes per second of 1 MB messages, one way, from the first write to the last release: the writer
copies each message in, and the reader either reads every byte in place or copies the message out. memcpy copies the
same message between the same number of buffers within one process. A round trip is 1 KB there and back, copied in on
both sides. Each round measures everything once, and figures are medians over rounds; Ray is started after the bandwidth
is measured. Each process needs a core of its own: on a busy machine the figures are far lower.
"""

import argparse
import inspect
import json
import multiprocessing
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tessera.channels.shared_memory import Allocator, Arena, Bell, Layout, Ring

SLOTS = 4
LARGE = Layout.of([np.zeros(2**20, np.uint8)])
SMALL = Layout.of([np.zeros(256, np.float32)])
RINGS = {"large": (LARGE, SLOTS), "there": (SMALL, SLOTS), "back": (SMALL, SLOTS)}
READ, COPY, STOP = 0, 1, 2
"""What the reader does with a large message, sent as its version."""
PARENT, CHILD = 0, 1

Rows = list[dict[str, float]]
"""The figures of every round."""


def lay_out() -> tuple[dict[str, int], int, int]:
    """The offsets of the rings and of the bell, and the size of the arena."""
    allocator = Allocator()
    offsets = {name: allocator.take(Ring.nbytes(layout, slots, 1)) for name, (layout, slots) in RINGS.items()}
    return offsets, allocator.take(Bell.nbytes(2)), allocator.size


def connect(arena: Arena, me: int) -> tuple[Ring, Ring, Ring, Bell]:
    offsets, bell_offset, _ = lay_out()
    large, there, back = (Ring(arena, offsets[name], *RINGS[name], readers=1) for name in RINGS)
    return large, there, back, Bell(arena, bell_offset, 2, me)


def serve(handle: tuple[int, int, int]) -> None:
    """The other process: takes large messages, sends small ones back."""
    large, there, back, bell = connect(Arena.attach(*handle), CHILD)
    own = np.zeros(2**20, np.uint8)
    while True:
        seen = bell.look()
        if (message := there.peek(0)) is not None:
            back.write(message)
            there.release(0)
        elif (message := large.peek(0)) is not None:
            kind = large.version(large.taken(0))
            if kind == READ:
                message[0].max()
            elif kind == COPY:
                np.copyto(own, message[0])
            large.release(0)
            if kind == STOP:
                return
        else:
            bell.wait(seen, 1.0)
            continue
        bell.ring(PARENT)


def bandwidth(large: Ring, bell: Bell, payload: np.ndarray, kind: int, count: int) -> float:
    """GB/s of a stream of large messages."""
    begin = time.perf_counter()
    for _ in range(count):
        while True:
            seen = bell.look()
            if large.can_send():
                break
            bell.wait(seen, 1.0)
        large.write([payload], version=kind)
        bell.ring(CHILD)
    while True:
        seen = bell.look()
        if not large.waiting(0):
            break
        bell.wait(seen, 1.0)
    return count * payload.nbytes / (time.perf_counter() - begin) / 1e9


def memcpy(buffers: list[np.ndarray], payload: np.ndarray, count: int) -> float:
    """GB/s of the same copies within one process."""
    begin = time.perf_counter()
    for k in range(count):
        np.copyto(buffers[k % len(buffers)], payload)
    return count * payload.nbytes / (time.perf_counter() - begin) / 1e9


def round_trips(there: Ring, back: Ring, bell: Bell, count: int) -> float:
    """Median microseconds of 1 KB there and back."""
    payload, times = [np.zeros(256, np.float32)], []
    for _ in range(count):
        begin = time.perf_counter()
        there.write(payload)
        bell.ring(CHILD)
        while True:
            seen = bell.look()
            if back.peek(0) is not None:
                break
            bell.wait(seen, 1.0)
        back.release(0)
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e6


def serve_ray() -> None:
    """In an interpreter with Ray: for each line of input, median microseconds of a call and of a 1 KB echo."""
    import json
    import statistics
    import sys
    import time

    import numpy as np
    import ray

    class Echo:
        def nothing(self) -> None:
            pass

        def echo(self, message: np.ndarray) -> np.ndarray:
            return message

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    actor, payload = ray.remote(Echo).remote(), np.zeros(256, np.float32)

    def median(call: Callable[[], Any]) -> float:
        times = []
        for _ in range(300):
            begin = time.perf_counter()
            ray.get(call())
            times.append(time.perf_counter() - begin)
        return statistics.median(times) * 1e6

    median(actor.nothing.remote)
    for _ in sys.stdin:
        print(json.dumps([median(actor.nothing.remote), median(lambda: actor.echo.remote(payload))]), flush=True)


def start_ray(python: str) -> subprocess.Popen:
    """Start a process that measures once for each line of input."""
    code = f"from __future__ import annotations\n{inspect.getsource(serve_ray)}\nserve_ray()"
    return subprocess.Popen([python, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def measure_ray(process: subprocess.Popen) -> list[float]:
    """Have the process measure once."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def bandwidths(large: Ring, bell: Bell, rounds: int) -> Rows:
    """GB/s of each kind of copy; the first round faults the memory in and is left out."""
    payload = np.random.default_rng(0).integers(0, 256, 2**20, np.uint8)
    buffers = [np.zeros_like(payload) for _ in range(SLOTS)]
    rows = []
    for _ in range(rounds + 1):
        copied, read = bandwidth(large, bell, payload, COPY, 500), bandwidth(large, bell, payload, READ, 500)
        rows.append({"memcpy": memcpy(buffers, payload, 500), "in_place": read, "copied_out": copied})
    return rows[1:]


def latencies(there: Ring, back: Ring, bell: Bell, rounds: int, python: str | None) -> Rows:
    """Microseconds of a round trip, and of Ray's if an interpreter is given."""
    ray = start_ray(python) if python else None
    rows = []
    for _ in range(rounds + 1):
        row = {"round_trip": round_trips(there, back, bell, 2000)}
        if ray is not None:
            row["ray_call"], row["ray_echo"] = measure_ray(ray)
        rows.append(row)
    if ray is not None:
        ray.communicate()
    return rows[1:]


def median_of(rows: Rows, name: str, over: str | None = None) -> float:
    """Median of a figure, or of its ratio to another of the same round."""
    return round(statistics.median(row[name] / (row[over] if over else 1) for row in rows), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds")
    parser.add_argument("--ray", help="interpreter that has Ray")
    options = parser.parse_args()
    arena = Arena(lay_out()[2])
    child = multiprocessing.get_context("spawn").Process(target=serve, args=(arena.handle,), daemon=True)
    child.start()
    large, there, back, bell = connect(arena, PARENT)
    copies = bandwidths(large, bell, options.rounds)
    report = {f"{name}_gb_per_second": median_of(copies, name) for name in copies[0]}
    report |= {f"{name}_to_memcpy": median_of(copies, name, "memcpy") for name in ("in_place", "copied_out")}
    trips = latencies(there, back, bell, options.rounds, options.ray)
    report |= {f"{name}_microseconds": median_of(trips, name) for name in trips[0]}
    report |= {f"{name}_ratio": median_of(trips, name, "round_trip") for name in trips[0] if name != "round_trip"}
    print(json.dumps(report, indent=2))
    large.write([np.zeros(2**20, np.uint8)], version=STOP)
    bell.ring(CHILD)
    child.join()


if __name__ == "__main__":
    main()
