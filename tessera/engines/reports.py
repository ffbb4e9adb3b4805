"""What fragments report of each update, merged over replicas and devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from tessera.program.training import Guard, Learned, Tally


@dataclass(frozen=True)
class Reports:
    """A row per update: arrays with a leading axis over the updates of one call."""

    tally: Tally
    metrics: dict[str, np.ndarray]
    broken_at: dict[str, np.ndarray]
    """At which gradient of an update each metric first stopped being finite."""
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


def merge_metrics(parts: list[Learned], weights: list[int]) -> Learned:
    """Average metrics over replicas by the groups they hold; devices of one replica agree already."""
    shares = np.asarray(weights) / sum(weights)
    means = [p.mean for p in parts]
    return Learned(
        {name: np.tensordot(shares, np.stack([m[name].mean(0) for m in means]), axes=1) for name in means[0]},
        {name: np.min([p.broken_at[name].min(0) for p in parts], axis=0) for name in means[0]},
    )
