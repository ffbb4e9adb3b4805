"""A population whose members have processes of their own: they train from one exchange to the next, and copy folders.

Whatever is interrupted is done again: an exchange follows from what the members have saved, and it is in the lineage
before the first checkpoint is copied. Members that are copied stay as they are meanwhile; a mean is kept in a file.
"""

from __future__ import annotations

import math
import shutil
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

DRAFT = "inheriting"
"""Folder of a member in which a copy is written, until it takes the place of the member's own checkpoints."""
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
        weighed = ["weight" in row for row in lineage.rows if row["update"]]
        if any(set(row["tuned"]) != set(first[0]) for row in lineage.rows) or any(
            each != bool(self.meeting.population.sigma) for each in weighed
        ):
            raise TesseraError(f"{self.folder / FILE} is damaged: it does not fit the population in config.json")
        update = rows[0]["update"]
        if update:
            numbers = {seed: k for k, seed in enumerate(lineage.seeds)}
            descents = [Descent(numbers[row["parent"]], row["tuned"]) for row in rows]
            self._give(update, descents, [row["weight"] for row in rows if "weight" in row])
        return update

    def exchange(self, update: int, found: Sequence[dict[str, Any]]) -> None:
        """Decide who goes on from whom, by what the round of each member has shown, and copy."""
        lineage = self.meeting.lineage
        if all(each["failed"] for each in found):
            raise RunFailed(f"all members failed, the first of them so: {found[0]['failed']}")
        if any(each.get("update", update) != update for each in found):
            raise RunFailed(f"{self.folder / FILE} does not fit the checkpoints of the members: start a new run")
        scores = [
            -math.inf if each["failed"] else math.nan if each.get("score") is None else each["score"] for each in found
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
        draft = mine / DRAFT / str(update)
        done = latest is not None and (latest > update or before.get(INHERITED_AT) == update)
        if not done and not _is_whole(draft):
            self._write_draft(draft, update, number, descent, mean, before.get("wall_seconds"))
        if not done:  # from here on a kill leaves a whole draft, which is put in place when the run goes on
            own.forget_after(None)
            draft.rename(mine / "checkpoints" / str(update))
        shutil.rmtree(mine / DRAFT, ignore_errors=True)
        own.close()

    def _write_draft(
        self, draft: Path, update: int, number: int, descent: Descent, mean: Arrays | None, seconds: float | None
    ) -> None:
        """Write what a member goes on with beside its checkpoints; `seconds` are its own, which never run backwards."""
        shutil.rmtree(draft.parent, ignore_errors=True)
        arrays, meta = self._load(self.meeting.lineage.seeds[descent.parent], update)
        for path, array in arrays.items():
            head, _, name = path.rpartition("/")
            if head.endswith("clock/tuned"):
                arrays[path] = np.full_like(array, descent.tuned[name])
        if mean is not None:
            arrays = spread(arrays, near(mean, self.meeting.population.sigma, self.meeting.seed, update, number))
        beside = Checkpoints(draft.parent, keep=1)
        seconds = meta["wall_seconds"] if seconds is None else seconds
        beside.save(update, arrays, {**meta, INHERITED_AT: update, "wall_seconds": seconds})
        beside.close()


def _is_whole(draft: Path) -> bool:
    """Whether a draft was written to its end: Orbax gives it its name only then."""
    return draft.is_dir()
