"""The folders of runs that differ in their seeds only.

Each seed has a run folder of its own, seed-1 and so on, which is like that of a lone run. The folder around them holds
config.json, plan.json, metrics.jsonl and summary.json of all together.
"""

from __future__ import annotations

import re
from pathlib import Path

from tessera.errors import TesseraError
from tessera.runs import directory

NAME = re.compile(r"seed-(-?[0-9]{1,20})")
"""Name of the run folder of one seed."""


def seed_folder(folder: Path | None, seed: int) -> Path | None:
    """The run folder of one seed."""
    return None if folder is None else folder / f"seed-{seed}"


def run_folders(folder: Path) -> list[Path]:
    """The run folders in a folder with several seeds; of a lone run, itself."""
    if not (folder / "config.json").exists():
        return [folder]
    config = directory.read_config(folder)
    count = config.get("seeds")
    if count is None:
        return [folder]
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise TesseraError(f"{folder / 'config.json'} is damaged: 'seeds' is no number of seeds")
    named = [(int(match[1]), path) for path in folder.iterdir() if (match := NAME.fullmatch(path.name))]
    mine = sorted((seed, path) for seed, path in named if 0 <= seed - config["seed"] < count)
    found = [path for _, path in mine if (path / "config.json").exists()]
    if not found:
        raise TesseraError(f"{folder} holds no run of any of its {count} seeds yet: train a little longer")
    return found
