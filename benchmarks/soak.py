"""Does memory grow? Runs distributed_replay with a full buffer and fits a line to every process's resident memory.

python benchmarks/soak.py --minutes 10
python benchmarks/soak.py --minutes 10 --engine ray     # the object store of Ray as well

Replicas of one node share memory, so what goes through the object store is seen on several nodes, with large messages:

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

LOOK_SECONDS = 5.0
TELL_SECONDS = 60.0
CAPACITY = 20_000
INLINE_BYTES = 90 * 1024
"""Messages of less travel with a call of Ray's, others through its object store."""


class Enough(Exception):
    """The time is over."""


def resident(pid: int) -> float:
    """Resident memory of a process, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def stored() -> float:
    """What Ray's object stores hold, in MB."""
    import ray

    whole, left = ray.cluster_resources(), ray.available_resources()
    return (whole["object_store_memory"] - left.get("object_store_memory", 0.0)) / 2**20


def sizes(engine: ProcessEngine) -> str:
    """How large the messages of every stream are."""
    found = {}
    for (channel, _), line in engine.lines.items():
        found[engine.plan.channels[channel].stream] = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(line.like))
    through = sum(size >= INLINE_BYTES for size in found.values())
    told = ", ".join(f"{stream} {size / 1024:,.0f} KB" for stream, size in found.items())
    return f"messages: {told}; {through} of {len(found)} streams are large enough for an object store"


def main() -> None:
    """Run, look every few seconds, print the slopes after the first quarter."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--policy", default="distributed_replay:actors=2,stores=2,mode=async")
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--env", default="gymnax:CartPole-v1")
    parser.add_argument("--algorithm", default="dqn", help="one that learns from a replay")
    options = parser.parse_args()
    kept = [stored] if options.engine == "ray" else []
    begun, rows, titles, told = time.monotonic(), [], ["driver"], [0.0]
    advance = ProcessEngine.advance

    def looking(engine: ProcessEngine, count: int, ahead: int = 0) -> Any:
        reports = advance(engine, count, ahead)
        now = time.monotonic() - begun
        if not rows:
            print(sizes(engine), flush=True)
        if not rows or now - rows[-1][0] > LOOK_SECONDS:
            processes = sorted(engine.processes().items())
            titles[1:] = [title for title, _ in processes] + ["object store"] * len(kept)
            rows.append([now, resident(os.getpid()), *(resident(pid) for _, pid in processes), *(f() for f in kept)])
            if now > told[-1] + TELL_SECONDS:
                told.append(now)
                figures = ", ".join(f"{title} {mb:.1f}" for title, mb in zip(titles, rows[-1][1:], strict=True))
                print(f"minute {now / 60:4.1f}, update {engine.done:,}, MB: {figures}", flush=True)
        if now > options.minutes * 60:
            updates.append(engine.done)
            raise Enough
        return reports

    updates: list[int] = []
    ProcessEngine.advance = looking  # type: ignore[method-assign]
    algorithm = algorithms.get(options.algorithm)(prioritised=True, capacity=CAPACITY)
    with contextlib.suppress(Enough):
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
