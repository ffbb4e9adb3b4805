"""What a run knows of the population that it is a member of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tessera.algorithms.contract import Algorithm
from tessera.runs.population import Tuned


@dataclass
class Exchanges:
    """When the members meet, and the values that this one has of what is tuned."""

    every: int
    """Updates from one exchange to the next; 0: there is none."""
    updates: int
    """Updates of the whole run; after the last there is nothing to go on with."""
    tuned: Tuned
    met_at: int = 0
    """The update of the newest exchange."""

    @classmethod
    def of(cls, algorithm: Algorithm, every: int, updates: int) -> Exchanges:
        """That of a run which is at its beginning."""
        return cls(every, updates, {name: float(getattr(algorithm, name)) for name in algorithm.tuned})

    def updates_to_next(self, update: int) -> int | None:
        """Updates until the next exchange; None if there is none."""
        following = self.next_after(update)
        return None if following is None else following - update

    def next_after(self, update: int) -> int | None:
        """The update of the first exchange after this one; None if there is none."""
        following = update - update % self.every + self.every if self.every else self.updates
        return following if following < self.updates else None

    def is_due(self, update: int) -> bool:
        """Whether the members meet before anything else is done."""
        return bool(self.every) and self.met_at < update < self.updates and update % self.every == 0

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Go on with the values that a snapshot holds; where it is that of an exchange, the members are to meet."""
        self.met_at = 0
        held = snapshot["state"].clock.tuned
        self.tuned = {name: float(held[name]) for name in self.tuned}

    def as_metrics(self) -> dict[str, float]:
        """What rows of metrics hold of it."""
        return {f"tuned/{name}": value for name, value in self.tuned.items()}
