"""The best checkpoint of a run: what acts, of the update whose greedy episodes had the highest mean return.

It lies in `best/`, a folder of checkpoints that keeps one, so it is written as safely as the others and rotation does
not reach it. Where a kill has left two of them, the one with the higher return is the best: a run that has gone back
may have found it at the earlier update.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessera.errors import TesseraError
from tessera.program.training_program import acting
from tessera.runs.checkpoint import Arrays, Checkpoints, SaveFailed

if TYPE_CHECKING:  # whoever only loads an agent evaluates nothing
    from tessera.runs.run_evaluations import Evaluated

FOLDER = "best"
"""Name of its folder within a run's."""


class BestCheckpoint:
    """Keeps the best params of a run so far."""

    def __init__(self, run: Path | None, note: Callable[[str], None], keeps: bool = True) -> None:
        """Find what an earlier process has kept in a run folder; `keeps` says whether this one does so too."""
        self._folder, self._note = run / FOLDER if run is not None and keeps else None, note
        self._checkpoints: Checkpoints | None = None
        self.return_mean = -math.inf
        """Mean return of the best evaluation."""
        self.update: int | None = None
        """The update that was evaluated."""
        try:
            found = None if run is None else read_best(run)
        except TesseraError as error:
            note(f"{error}; the next evaluation replaces it")
        else:
            if found is not None:
                self.update, self.return_mean = found[0], found[2]["return_mean"]

    def is_beaten_by(self, evaluated: Evaluated) -> bool:
        """Whether an evaluation is better than all before."""
        return evaluated.return_mean > self.return_mean

    def replace(self, evaluated: Evaluated, meta: dict[str, Any]) -> Path | None:
        """Keep what was evaluated instead: the folder of the checkpoint, if one was written."""
        path = None
        if self._folder is not None:
            path = self._write(self._folder, evaluated, meta)
            if path is None:  # so that a later one is kept that beats the one on disk
                return None
        self.update, self.return_mean = evaluated.update, evaluated.return_mean
        return path

    def _write(self, folder: Path, evaluated: Evaluated, meta: dict[str, Any]) -> Path | None:
        meter = {"updates": evaluated.update, "env_steps": evaluated.env_steps}
        meta = {**meta, "meter": meter, "return_mean": evaluated.return_mean}
        try:
            if self._checkpoints is None:
                self._checkpoints = Checkpoints(folder, keep=None)
            self._checkpoints.save_alone(evaluated.update, {"state": acting(evaluated.view)}, meta)
        except SaveFailed as error:
            self._note(f"{error}: training goes on without")
            return None
        return folder / str(evaluated.update)

    def close(self) -> None:
        """Close the files."""
        if self._checkpoints is not None:
            self._checkpoints.close()


def read_best(run: Path) -> tuple[int, Arrays, dict[str, Any]] | None:
    """The update of a run's best checkpoint, its arrays and metadata; None if it has none."""
    folder = run / FOLDER
    if not folder.is_dir():
        return None
    checkpoints = Checkpoints(folder, read_only=True)
    try:
        found, failure = [], None
        for number in checkpoints.updates():
            try:
                found.append(_read(checkpoints, number))
            except (TesseraError, KeyError, TypeError, ValueError) as error:
                failure = error
        if failure is not None and not found:  # else a kill has left it as it was being deleted
            raise TesseraError(f"the best checkpoint of {run} is damaged, the newest may not be") from failure
        return max(found, key=lambda each: each[2]["return_mean"], default=None)
    finally:
        checkpoints.close()


def _read(checkpoints: Checkpoints, number: int) -> tuple[int, Arrays, dict[str, Any]]:
    arrays, meta = checkpoints.load(number, large=False)
    meta["return_mean"] = float(meta["return_mean"])
    return int(meta["meter"]["updates"]), arrays, meta
