"""Whether a run's arrays fit into memory, found out before any of them is made."""

from __future__ import annotations

import math
from dataclasses import replace

import jax
import numpy as np

from tessera.algorithms.contract import Algorithm
from tessera.engines.replica.replica import make_training
from tessera.engines.simulated.memory import ACTIVATIONS
from tessera.envs.base import Environment
from tessera.errors import TesseraError
from tessera.graph.plan import Plan
from tessera.program.initial import experience_shape
from tessera.program.shapes import slot_shapes
from tessera.support.machine import available_memory
from tessera.support.trees import bytes_of

SHARE_OF_MEMBERS = 0.8
"""Share of memory that members of a population may fill."""
SHARE = 0.25
"""Share of memory below which the rough estimate is trusted: the exact one takes a moment."""


def check_memory(algorithm: Algorithm, env: Environment, envs: int) -> None:
    """Refuse environments and a replay that cannot fit."""
    there = _memory()
    capacity = int(getattr(algorithm.store, "capacity", 0)) if algorithm.store.persistent else 0
    row = max(1, sum(math.prod(x.shape) * np.dtype(x.dtype).itemsize for x in env.spec.parts.values()))
    if (envs * algorithm.schedule.steps + capacity) * row < SHARE * there:
        return
    experience = experience_shape(replace(algorithm, envs=envs), env)
    asked = envs * bytes_of(experience.rows)
    if capacity:
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), experience.rows)
        asked += bytes_of(jax.eval_shape(lambda: algorithm.store.init(one, algorithm.schedule.steps)))
    if asked > there:
        replay = f" and a replay of {capacity:,} rows" if capacity else ""
        raise TesseraError(
            f"{envs:,} environments{replay} take at least {asked / 2**30:,.1f} GB, available: {there / 2**30:,.1f} GB: "
            f"choose fewer (--envs{', --capacity' if capacity else ''}) or a shorter --unroll"
        )


def members_at_once(algorithm: Algorithm, env: Environment, plan: Plan, members: int) -> int:
    """How many members of a population memory holds at once, by a rough estimate: at least one, `members` at most."""
    shapes = slot_shapes(make_training(plan, algorithm, env), plan)
    one = ACTIVATIONS * sum(bytes_of(shape) for shape in shapes.values())
    return max(1, min(members, int(SHARE_OF_MEMBERS * _memory() / one)))


def _memory() -> int:
    """Bytes that arrays of a run can take: all accelerators of this machine, or its own memory."""
    limits = [(device.memory_stats() or {}).get("bytes_limit", 0) for device in jax.local_devices()]
    return sum(limits) if all(limits) else available_memory()
