"""Does memory grow? Runs distributed_replay with a full buffer and fits a line to every process's resident memory.

python benchmarks/soak.py --minutes 10
python benchmarks/soak.py --minutes 10 --engine ray     # the object store of Ray as well

Replicas of one node share memory, so the object store is used only on several nodes, with large messages:

tessera cluster up --nodes 3
python benchmarks/soak.py --minutes 10 --engine ray --env gymnax:Breakout-MinAtar
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import tessera
from tessera import algorithms
from tessera.engines.driver.process_engine import ProcessEngine

SAMPLE_SECONDS = 5.0
PRINT_SECONDS = 60.0
CAPACITY = 20_000
INLINE_BYTES = 90 * 1024
"""Smaller messages travel within a call of Ray, larger ones through its object store."""


class TimeIsOver(Exception):
    """The minutes of this benchmark are over."""


def resident(pid: int) -> float:
    """Resident memory of a process, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def object_store() -> float:
    """Bytes in Ray's object stores, in MB."""
    import ray

    total, free = ray.cluster_resources(), ray.available_resources()
    return (total["object_store_memory"] - free.get("object_store_memory", 0.0)) / 2**20


def message_sizes(engine: ProcessEngine) -> str:
    """The size of the messages of every stream."""
    sizes = {}
    for (channel, _), spec in engine.link_specs.items():
        leaves = jax.tree.leaves(spec.like)
        sizes[engine.plan.channels[channel].stream] = sum(x.size * x.dtype.itemsize for x in leaves)
    stored = sum(size >= INLINE_BYTES for size in sizes.values())
    described = ", ".join(f"{stream} {size / 1024:,.0f} KB" for stream, size in sizes.items())
    return f"messages: {described}; {stored} of {len(sizes)} streams are large enough for an object store"


def main() -> None:
    """Run, sample every few seconds, print the slopes after the first quarter."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--policy", default="distributed_replay:actors=2,stores=2,mode=async")
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--env", default="gymnax:CartPole-v1")
    parser.add_argument("--algorithm", default="dqn", help="one that learns from a replay")
    options = parser.parse_args()
    stores = [object_store] if options.engine == "ray" else []
    begun, rows, titles, printed = time.monotonic(), [], ["driver"], [0.0]
    advance = ProcessEngine.advance

    def sampling(engine: ProcessEngine, count: int, ahead: int = 0) -> Any:
        reports = advance(engine, count, ahead)
        now = time.monotonic() - begun
        if not rows:
            print(message_sizes(engine), flush=True)
        if not rows or now - rows[-1][0] > SAMPLE_SECONDS:
            processes = sorted(engine.processes().items())
            titles[1:] = [title for title, _ in processes] + ["object store"] * len(stores)
            rows.append([now, resident(os.getpid()), *(resident(pid) for _, pid in processes), *(f() for f in stores)])
            if now > printed[-1] + PRINT_SECONDS:
                printed.append(now)
                figures = ", ".join(f"{title} {mb:.1f}" for title, mb in zip(titles, rows[-1][1:], strict=True))
                print(f"minute {now / 60:4.1f}, update {engine.done:,}, MB: {figures}", flush=True)
        if now > options.minutes * 60:
            updates.append(engine.done)
            raise TimeIsOver
        return reports

    updates: list[int] = []
    ProcessEngine.advance = sampling  # type: ignore[method-assign]
    algorithm = algorithms.get(options.algorithm)(prioritised=True, capacity=CAPACITY)
    with contextlib.suppress(TimeIsOver):
        tessera.train(algorithm, options.env, options.policy, engine=options.engine, steps=10**10, seed=1, quiet=True)
    table = np.asarray(rows)[len(rows) // 4 :]
    inserted = updates[0] * algorithm.unroll * algorithm.default_envs
    print(
        f"{options.algorithm} on {options.env}, {options.policy}: {rows[-1][0] / 60:.1f} minutes, {inserted:,} rows "
        f"through a replay of {CAPACITY:,}"
    )
    for k, title in enumerate(titles, 1):
        slope = np.polyfit(table[:, 0] / 60, table[:, k], 1)[0]
        print(
            f"{title:14s} {table[0, k]:7.1f} MB -> {table[-1, k]:7.1f} MB, slope {slope:+.3f} MB a minute, "
            f"most {table[:, k].max():.1f} MB"
        )


if __name__ == "__main__":
    main()
