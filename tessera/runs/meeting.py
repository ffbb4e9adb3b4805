"""Where the members of a population meet: who goes on from whom is decided, written down and said."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tessera.maths.tuning import recombination_weights
from tessera.runs.display import number
from tessera.runs.lineage import Lineage
from tessera.runs.population import Descent, Population, Tuned


@dataclass(frozen=True)
class Meeting:
    """Decides exchanges, by a seed, and keeps the lineage."""

    population: Population
    seed: int
    lineage: Lineage
    note: Callable[[str], None]
    keep: int
    """Checkpoints that each member keeps."""

    def decide(self, update: int, scores: Sequence[float], tuned: Sequence[Tuned]) -> list[Descent]:
        """What each member goes on from; it is in the lineage before anything follows from it."""
        descents = self.population.exchange(self.seed, update, scores, tuned)
        weights = recombination_weights(scores) if self.population.sigma else []
        self.lineage.note(update, scores, descents, weights)
        copies = sum(descent.parent != k for k, descent in enumerate(descents))
        averaged = sum(weight > 0 for weight in weights)
        count = len(descents)
        copying = f"{copies} of {count} members go on from better ones"
        what = f"all {count} members go on near the mean of the best {averaged}" if weights else copying
        known = [score for score in scores if math.isfinite(score)]
        best = f"; best training return {number(max(known))}" if known else ""
        self.note(f"exchange at update {update:,}: {what}{best}")
        return descents
