"""How games ended: won, drawn and lost, with intervals."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tessera.evaluation.intervals import share_interval


class Outcomes(NamedTuple):
    """How many games were won, drawn and lost."""

    won: int
    drawn: int
    lost: int

    @classmethod
    def of(cls, returns: np.ndarray) -> Outcomes:
        """Count games by their returns: above 0 is won, below 0 lost."""
        won, lost = int((returns > 0).sum()), int((returns < 0).sum())
        return cls(won, len(returns) - won - lost, lost)

    def intervals(self) -> dict[str, tuple[float, float]]:
        """95 % intervals of the shares won, drawn and lost."""
        return {name: share_interval(count, sum(self)) for name, count in self._asdict().items()}

    def in_words(self, opponent: str) -> str:
        """All of it in one clause."""
        bounds = ", ".join(f"{name} {low:.1%} to {high:.1%}" for name, (low, high) in self.intervals().items())
        against = f"against {opponent}: {self.won:,} won, {self.drawn:,} drawn, {self.lost:,} lost"
        return f"{against} (95 %: {bounds})" if sum(self) else against


def outcome_figures(outcomes: Outcomes | None, opponent: str, before: str = "") -> dict[str, Any]:
    """Figures by name, each with `before` in front; None where no game was played."""
    counts = dict.fromkeys(Outcomes._fields) if outcomes is None else outcomes._asdict()
    bounds = dict.fromkeys(Outcomes._fields) if outcomes is None else outcomes.intervals()
    figures = {"opponent": opponent or None, **counts, **{f"{name}_interval": bounds[name] for name in bounds}}
    return {before + name: value for name, value in figures.items()}
