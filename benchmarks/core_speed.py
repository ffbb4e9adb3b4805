"""How well does the speed of a core, as profiles measure it, tell how fast a plan runs while others use the machine?

    python benchmarks/core_speed.py
    python benchmarks/core_speed.py --env gymnax:CartPole-v1 --policies central:workers=2 --seconds 60

A plan runs in short parts, and several small pieces of work are timed between them. Each row says, over windows of
about a second and a half: by how much the plan's speed varies, as it is and relative to the speed of that work
(standard deviation of logarithms), and by what power of it the plan's speed goes (1 is best). On a quiet machine all
is noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tyro

from tessera import algorithms
from tessera.engines.factory import make_engine
from tessera.planning.prepare import prepare_plan
from tessera.profiling.core_speed import turns_per_microsecond

PART_SECONDS = 0.06
SAMPLE_SECONDS = 0.0015
WINDOW = 24
"""Parts of a window."""
ROWS, WEIGHTS = np.ones((16, 64), np.float32), np.ones((64, 64), np.float32)
LARGE = np.arange(1 << 17, dtype=np.float32)
SOMEWHERE = np.random.default_rng(0).permutation(1 << 17)[:4096]


@dataclass
class Options:
    """What to run."""

    algorithm: str = "ppo"
    env: str = "CartPole-v1"
    policies: tuple[str, ...] = ("fused:devices=1", "single_learner_coarse:actors=2")
    seconds: float = 45.0
    """For each policy."""


def arithmetic() -> None:
    """A small product and a function of it."""
    np.tanh(ROWS @ WEIGHTS)


def python() -> None:
    """Arithmetic in Python."""
    total = 0
    for i in range(100):
        total += i * i % 7


def gather() -> None:
    """Numbers from all over half a megabyte."""
    LARGE[SOMEWHERE].sum()


def per_second(work: Callable[[], None]) -> float:
    """How often a core does some work in a second of its time."""
    turns, begun = 0, time.thread_time()
    while (seconds := time.thread_time() - begun) < SAMPLE_SECONDS:
        work()
        turns += 1
    return turns / seconds


def measure(options: Options, policy: str) -> None:
    """Run one plan and print its rows."""
    bound, env, plan = prepare_plan(algorithms.get(options.algorithm)(), options.env, policy)
    rest: dict[str, Any] = {} if plan.engine == "serial" else {"note": lambda text: None}
    engine = make_engine(plan, bound, env, 0, 1 << 24, None, **rest)
    works = {work.__name__: partial(per_second, work) for work in (arithmetic, python, gather)}
    works["as profiles do"] = partial(turns_per_microsecond, SAMPLE_SECONDS)
    speeds: list[float] = []
    others: dict[str, list[float]] = {name: [] for name in works}
    try:
        engine.start()
        for _ in range(4):
            begun = time.perf_counter()
            engine.advance(1)
        part = max(1, int(PART_SECONDS / (time.perf_counter() - begun)))
        end = time.perf_counter() + options.seconds
        while time.perf_counter() < end:
            begun = time.perf_counter()
            engine.advance(part)
            speeds.append(part / (time.perf_counter() - begun))
            for name, work in works.items():
                others[name].append(work())
    finally:
        engine.close()
    count = len(speeds) // WINDOW * WINDOW
    plan_speed = -np.log((1 / np.array(speeds[:count])).reshape(-1, WINDOW).mean(1))
    print(f"{policy}: {count // WINDOW} windows, varies by {plan_speed.std():.3f}")
    for name, samples in others.items():
        speed = np.log(np.array(samples[:count]).reshape(-1, WINDOW).mean(1))
        power = np.cov(plan_speed, speed)[0, 1] / speed.var(ddof=1)
        print(f"  relative to {name:15s} {(plan_speed - speed).std():.3f}, goes by its power {power:.2f}", flush=True)


def main(options: Options) -> None:
    """Measure each policy."""
    for policy in options.policies:
        measure(options, policy)


if __name__ == "__main__":
    main(tyro.cli(Options))
