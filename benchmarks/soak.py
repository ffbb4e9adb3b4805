"""Does memory grow? Runs distributed_replay with a full buffer and fits a line to every process's resident memory.

python benchmarks/soak.py --minutes 10
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

import tessera
from tessera.engines.local import LocalEngine

LOOK_SECONDS = 5.0
CAPACITY = 20_000


class Enough(Exception):
    """The time is over."""


def resident(pid: int) -> float:
    """Resident memory of a process, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def main() -> None:
    """Run, look every few seconds, print the slopes after the first quarter."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--policy", default="distributed_replay:actors=2,stores=2,mode=async")
    options = parser.parse_args()
    begun, rows, titles = time.monotonic(), [], ["driver"]
    advance = LocalEngine.advance

    def looking(engine: LocalEngine, count: int, ahead: int = 0) -> Any:
        reports = advance(engine, count, ahead)
        now = time.monotonic() - begun
        if not rows or now - rows[-1][0] > LOOK_SECONDS:
            processes = sorted(engine.processes().items())
            titles[1:] = [title for title, _ in processes]
            rows.append([now, resident(os.getpid()), *(resident(pid) for _, pid in processes)])
        if now > options.minutes * 60:
            updates.append(engine.done)
            raise Enough
        return reports

    updates: list[int] = []
    LocalEngine.advance = looking  # type: ignore[method-assign]
    algorithm = tessera.DQN(prioritised=True, capacity=CAPACITY)
    with contextlib.suppress(Enough):
        tessera.train(algorithm, "gymnax:CartPole-v1", options.policy, steps=10**10, seed=1, quiet=True)
    table = np.asarray(rows)[len(rows) // 4 :]
    inserted = updates[0] * algorithm.unroll * algorithm.default_envs
    print(f"{options.policy}: {rows[-1][0] / 60:.1f} minutes, {inserted:,} rows through a replay of {CAPACITY:,}")
    for k, title in enumerate(titles, 1):
        slope = np.polyfit(table[:, 0] / 60, table[:, k], 1)[0]
        print(f"{title:14s} {table[0, k]:7.1f} MB -> {table[-1, k]:7.1f} MB, slope {slope:+.3f} MB a minute")


if __name__ == "__main__":
    main()
