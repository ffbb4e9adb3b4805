"""Agents without the state of their training: a run folder with one checkpoint, which holds what acting reads."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tessera.errors import TesseraError
from tessera.runs import directory
from tessera.runs.checkpoint import Checkpoints
from tessera.runs.saved_run import SavedRun
from tessera.support.files import write_json

KEPT = ("algorithm", "env", "meter")
"""What is kept of a checkpoint's metadata."""


def save_agent(saved: SavedRun, folder: Path) -> None:
    """Write an agent beside its place and rename it: what has its name is complete, whenever this is killed."""
    _check_replaceable(folder)
    draft, old = (folder.with_name(f".{folder.name}.{os.getpid()}.{what}") for what in ("draft", "old"))
    try:
        draft.mkdir(parents=True)
        checkpoints = Checkpoints(draft / "checkpoints", keep=1)
        meta = {name: saved.meta[name] for name in KEPT if name in saved.meta}
        checkpoints.save(saved.update, {"state": saved.view}, meta)
        checkpoints.close()
        write_json(draft / "config.json", {**saved.config, directory.SAVED_AGENT: True})
        if folder.exists():
            folder.rename(old)
        draft.rename(folder)
    except OSError as error:
        raise TesseraError(f"{folder} cannot be written to ({error.strerror}): save the agent elsewhere") from error
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)
        for left in (draft, old):
            shutil.rmtree(left, ignore_errors=True)


def _check_replaceable(folder: Path) -> None:
    """Refuse to write over anything but a saved agent or an empty folder."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise TesseraError(f"{folder} is a file or a link, and an agent is a folder: choose another name")
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not (folder / "config.json").is_file() or directory.SAVED_AGENT not in directory.read_config(folder):
        raise TesseraError(f"{folder} holds something that is no saved agent, and would be lost: choose another folder")
