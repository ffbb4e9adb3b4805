"""A process beside training that writes videos of greedy episodes."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tessera.algorithms.contract import Algorithm, View
from tessera.engines.replica.replica import wide_numbers
from tessera.envs.base import Environment
from tessera.envs.drawing.shapes import Frame
from tessera.evaluation.filming import Camera, Shot
from tessera.evaluation.side_process import MAX_DEATHS, SideProcess, answer, offers, prepare_beside, progress_messages
from tessera.evaluation.video_files import can_write, write_video
from tessera.support.headless import draw_without_display, headless_variables

MOST_STEPS = 2000
"""Steps of a video during training; a longer episode is cut there."""
MOST_VIDEOS = 20
"""Videos that a run keeps, the newest ones."""
PATIENCE = 600.0
"""Seconds without a frame after which the process counts as dead: it gets what training leaves."""


@dataclass(frozen=True)
class FilmingJob:
    """All that a process needs to write videos."""

    algorithm: Algorithm
    env: Environment
    seed: int
    folder: str
    x64: bool

    def work(self, connection: Connection) -> None:
        """Film an episode with params as they arrive, until the driver closes the connection."""
        draw_without_display()
        prepare_beside(self.x64)
        folder, ending = Path(self.folder), ".mp4" if can_write(".mp4") else ".gif"
        camera = Camera(self.algorithm, self.env)
        remove_drafts(folder)
        progress = progress_messages(connection)
        for update, view in offers(connection, self.algorithm):
            folder.mkdir(exist_ok=True)
            frames = _told(camera.film(view, 1, self.seed, MOST_STEPS), progress)
            first = next(frames)
            begun = time.monotonic()  # only now, since before the first frame programs are compiled
            frames = itertools.chain([first], frames)
            write_video(folder / f"update_{update:06}{ending}", frames, camera.fps, None)
            keep_newest(folder)
            answer(connection, {"seconds": time.monotonic() - begun})


def _told(shots: Iterator[Shot], progress: Callable[[], None]) -> Iterator[Frame]:
    for shot in shots:
        progress()
        yield shot.frame


def remove_drafts(folder: Path) -> None:
    """Remove what a process was writing when it was killed."""
    for draft in folder.glob(".update_*"):
        draft.unlink(missing_ok=True)


def keep_newest(folder: Path) -> None:
    """Remove all videos of a run but the newest."""

    def update(path: Path) -> int:
        number = path.stem.removeprefix("update_")
        return int(number) if number.isdecimal() else -1

    videos = sorted((path for path in folder.glob("update_*") if update(path) >= 0), key=update)
    for path in videos[:-MOST_VIDEOS]:
        with contextlib.suppress(OSError):
            path.unlink()


class SideFilming(SideProcess[float]):
    """The driver's end of a process that writes videos; what it finds is how many seconds one has taken."""

    title = "process that films"
    niceness = 19

    def __init__(
        self, algorithm: Algorithm, env: Environment, seed: int, folder: Path, note: Callable[[str], None]
    ) -> None:
        job = FilmingJob(algorithm, env, seed, str(folder.absolute()), wide_numbers())
        super().__init__(job, note, PATIENCE, PATIENCE, headless_variables())
        self._folder = folder

    def close(self) -> None:
        """End the process, which may be writing."""
        super().close()
        remove_drafts(self._folder)

    def found(self, update: int, view: View, meta: dict[str, Any], arrays: dict[str, Any]) -> float:
        """The seconds."""
        del update, view, arrays
        return meta["seconds"]

    def _handle_death(self, reason: str) -> None:
        """Note that there are no more videos: what went wrong once would go wrong again."""
        self._deaths = MAX_DEATHS
        self._note(f"no more videos: {reason}")
        self.close()
