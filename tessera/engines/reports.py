"""What fragments report of each update, merged over replicas and devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from tessera.program.training import Guard, Tally


@dataclass(frozen=True)
class Reports:
    """A row per update: arrays with a leading axis over the updates of one call."""

    tally: Tally
    metrics: dict[str, np.ndarray]
    guard: Guard


def by_update(value: Any, count: int) -> Any:
    """Bring a replica's report to NumPy, [devices, updates, ...], however its program made it."""
    if isinstance(value, list):  # composed on the host: one report per update
        rows = jax.device_get(value)
        return jax.tree.map(lambda *xs: np.stack(xs, axis=1), *rows)
    return jax.tree.map(lambda x: np.asarray(x)[:, :count], jax.device_get(value))


def merge_tallies(parts: list[Tally]) -> Tally:
    """Merge [devices, updates] tallies of all replicas into [updates]."""
    both = jax.tree.map(lambda *xs: np.concatenate(xs), *parts)
    return Tally(*(x.sum(0) for x in both))


def merge_metrics(parts: list[dict[str, np.ndarray]], weights: list[int]) -> dict[str, np.ndarray]:
    """Average metrics over replicas by the groups they hold; devices of one replica agree already."""
    shares = np.asarray(weights) / sum(weights)
    return {name: np.tensordot(shares, np.stack([p[name].mean(0) for p in parts]), axes=1) for name in parts[0]}
