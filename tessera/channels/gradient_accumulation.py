"""Gradients that are accumulated and sent as one: DistBelief's push period."""

from __future__ import annotations

from typing import Any, Protocol

import jax
import numpy as np

from tessera.program.exchange import SoloGradient
from tessera.program.training_program import squared_sums


class Accumulator(Protocol):
    """Adds up what is sent as one."""

    @property
    def full(self) -> bool:
        """Whether all of the next message is there."""

    def add(self, value: Any, version: int) -> None:
        """Add one."""

    def take(self) -> tuple[Any, int]:
        """What all of them make, and the version of the oldest; then it is empty."""


class GradientAccumulator:
    """The mean of a fixed number of gradients, with the summary of the last; a part is due if it was due in one."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._values: list[np.ndarray] = []
        self._last: Any = None
        self._count = 0
        self._version = 0

    @property
    def full(self) -> bool:
        """Whether all gradients of the next message are there."""
        return self._count == self._every

    def add(self, value: SoloGradient, version: int) -> None:
        """Add a gradient; the version of the oldest is kept."""
        leaves = [np.asarray(x) for x in jax.device_get(jax.tree.leaves(value.values))]
        if not self._count:
            self._values, self._version = [np.zeros_like(x) for x in leaves], version
        for total, x in zip(self._values, leaves, strict=True):
            total += x / self._every
        due = value.due if not self._count else jax.tree.map(np.logical_or, self._last.due, value.due)
        self._last = value._replace(due=due)
        self._count += 1

    def take(self) -> tuple[SoloGradient, int]:
        """The mean, and the version of the oldest; then it is empty."""
        mean = jax.tree.unflatten(jax.tree.structure(self._last.values), self._values)
        self._count = 0
        return self._last._replace(values=mean, squares=squared_sums(mean)), self._version
