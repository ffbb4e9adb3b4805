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

from tessera.errors import RunFailed
from tessera.runs import directory
from tessera.runs.checkpoint import Checkpoints
from tessera.runs.meeting import Meeting
from tessera.runs.population import Descent, Tuned
from tessera.runs.seed_folders import seed_folder

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
        update = lineage.newest[0]["update"]
        if update:
            numbers = {seed: k for k, seed in enumerate(lineage.seeds)}
            self._copy(update, [Descent(numbers[row["parent"]], row["tuned"]) for row in lineage.newest])
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
        self._copy(update, descents)

    def _copy(self, update: int, descents: Sequence[Descent]) -> None:
        for number, descent in enumerate(descents):
            if descent.parent != number:
                self._inherit(update, number, descent)

    def _inherit(self, update: int, number: int, descent: Descent) -> None:
        """Put a copy of its parent's checkpoint into a member's folder, unless that was done before."""
        seeds = self.meeting.lineage.seeds
        mine, parent = (seed_folder(self.folder, seeds[k]) for k in (number, descent.parent))
        assert mine is not None
        assert parent is not None
        if not (mine / "config.json").exists():  # it failed before its first update
            directory.begin(mine, self.config(seeds[number]), self.plan)
        own = Checkpoints(mine / "checkpoints", self.keep)
        latest = own.latest()
        before = {} if latest is None else own.load(latest, large=False)[1]
        if latest is not None and (latest > update or (latest == update and before.get(INHERITED_AT) == update)):
            return
        theirs = Checkpoints(parent / "checkpoints", read_only=True)
        arrays, meta = theirs.load(update)
        seconds = before.get("wall_seconds", meta["wall_seconds"])  # its own, which never run backwards
        for path, array in arrays.items():
            head, _, name = path.rpartition("/")
            if head.endswith("clock/tuned"):
                arrays[path] = np.full_like(array, descent.tuned[name])
        own.save_alone(update, arrays, {**meta, INHERITED_AT: update, "wall_seconds": seconds})
        own.close()
        theirs.close()
