"""A population whose members have processes of their own: they train from one exchange to the next, and copy folders.

Whatever is interrupted is done again: an exchange follows from what the members have saved, and it is in the lineage
before the first checkpoint is copied. Members that are copied stay as they are meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tessera.errors import RunFailed, TesseraError
from tessera.maths.tuning import recombination_weights
from tessera.runs import directory
from tessera.runs.array_files import read_npz, write_npz
from tessera.runs.checkpoint import Checkpoints
from tessera.runs.lineage import FILE
from tessera.runs.meeting import Meeting
from tessera.runs.population import Descent, Tuned
from tessera.runs.recombination import Arrays, mean_state, near, spread
from tessera.runs.seed_folders import seed_folder
from tessera.support.files import replaced_file

MEAN = "mean_{}.npz"
"""File of the mean that all members go on from after an exchange, by its update."""
INHERITED_AT = "inherited_at"
"""Entry of a checkpoint's metadata: the update of the exchange at which it was copied."""


@dataclass(frozen=True)
class PopulationRounds:
    """What happens between two rounds of training."""

    meeting: Meeting
    folder: Path
    config: Callable[[int], dict[str, Any]]
    """The configuration of a member, by its seed."""
    plan: dict[str, Any]
    keep: int

    def begin(self, first: Sequence[Tuned], resume: bool) -> int:
        """Begin, or go on: the update of the newest exchange."""
        lineage = self.meeting.lineage
        if resume:
            lineage.read()
        if not lineage.rows:
            lineage.begin(first)
            lineage.write()
        rows = lineage.newest
        if any(set(row["tuned"]) != set(first[0]) for row in lineage.rows):
            raise TesseraError(f"{self.folder / FILE} is damaged: it tunes other fields than config.json")
        update = rows[0]["update"]
        if update:
            numbers = {seed: k for k, seed in enumerate(lineage.seeds)}
            descents = [Descent(numbers[row["parent"]], row["tuned"]) for row in rows]
            self._give(update, descents, [row["weight"] for row in rows if "weight" in row])
        return update

    def exchange(self, update: int, found: Sequence[dict[str, Any]]) -> None:
        """Decide who goes on from whom, by what the round of each member has shown, and copy."""
        lineage = self.meeting.lineage
        scores = [
            -math.inf if each["failed"] else math.nan if each["score"] is None else each["score"] for each in found
        ]
        descents = self.meeting.decide(update, scores, [row["tuned"] for row in lineage.newest])
        for number, (seed, each) in enumerate(zip(lineage.seeds, found, strict=True)):
            if each["failed"]:
                if descents[number].parent == number:
                    raise RunFailed(f"seed {seed} failed, and there is no better member: {each['failed']}")
                self.meeting.note(f"seed {seed} failed, and goes on from a better member: {each['failed']}")
        self._give(update, descents, recombination_weights(scores) if self.meeting.population.sigma else [])

    def _give(self, update: int, descents: Sequence[Descent], weights: Sequence[float]) -> None:
        """Give each member what it goes on with: a copy, or params near a mean, if there are weights."""
        mean = self._mean(update, weights) if weights else None
        for number, descent in enumerate(descents):
            if descent.parent != number or mean is not None:
                self._inherit(update, number, descent, mean)

    def _mean(self, update: int, weights: Sequence[float]) -> Arrays:
        """What the members' params are averaged to: kept in a file before the first of them is replaced."""
        path = self.folder / MEAN.format(update)
        if not path.exists():
            states: list[Arrays] = []
            for seed, weight in zip(self.meeting.lineage.seeds, weights, strict=True):
                states.append(self._load(seed, update)[0] if weight else {})
            with replaced_file(path) as draft:
                write_npz(draft, mean_state(states, weights))
            for old in self.folder.glob(MEAN.format("*")):
                if old != path:
                    old.unlink()
        return read_npz(path)

    def _load(self, seed: int, update: int) -> tuple[Arrays, dict[str, Any]]:
        folder = seed_folder(self.folder, seed)
        assert folder is not None
        checkpoints = Checkpoints(folder / "checkpoints", read_only=True)
        try:
            return checkpoints.load(update)
        finally:
            checkpoints.close()

    def _inherit(self, update: int, number: int, descent: Descent, mean: Arrays | None) -> None:
        """Put a copy of its parent's checkpoint into a member's folder, unless that was done before."""
        seeds = self.meeting.lineage.seeds
        mine = seed_folder(self.folder, seeds[number])
        assert mine is not None
        if not (mine / "config.json").exists():  # it failed before its first update
            directory.begin(mine, self.config(seeds[number]), self.plan)
        own = Checkpoints(mine / "checkpoints", self.keep)
        latest = own.latest()
        before = {} if latest is None else own.load(latest, large=False)[1]
        if latest is not None and (latest > update or (latest == update and before.get(INHERITED_AT) == update)):
            return
        arrays, meta = self._load(seeds[descent.parent], update)
        seconds = before.get("wall_seconds", meta["wall_seconds"])  # its own, which never run backwards
        for path, array in arrays.items():
            head, _, name = path.rpartition("/")
            if head.endswith("clock/tuned"):
                arrays[path] = np.full_like(array, descent.tuned[name])
        if mean is not None:
            arrays = spread(arrays, near(mean, self.meeting.population.sigma, self.meeting.seed, update, number))
        own.save_alone(update, arrays, {**meta, INHERITED_AT: update, "wall_seconds": seconds})
        own.close()
