"""Videos of a run as it trains, written by a process beside it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

from tessera.algorithms.contract import Algorithm, View
from tessera.envs.base import Environment
from tessera.errors import TesseraError
from tessera.evaluation.side_filming import SideFilming
from tessera.runs.run_options import RunOptions

FILMING_SHARE = 0.1
"""The most of the time in which a run is filmed: cores that training leaves idle are not free of charge."""


class RunVideos:
    """Gives params to a process that films, each time that a video falls due and it has nothing to do."""

    def __init__(
        self,
        algorithm: Algorithm,
        env: Environment,
        options: RunOptions,
        seed: int,
        folder: Path | None,
        note: Callable[[str], None],
    ) -> None:
        """The process starts after the first update; `note` prints a line for the user."""
        self._every, self._folder, self._written = options.video_every, folder, 0
        self._rests_until = -math.inf
        """When the next video may begin, by the monotonic clock."""
        self._side: SideFilming | None = None
        if not self._every or folder is None:
            return
        try:
            self._side = SideFilming(algorithm, env, seed, folder / "videos", note)
        except TesseraError as error:
            note(f"no videos: {error}")

    def updates_to_next(self, update: int) -> int | None:
        """Updates until params may be asked for; None if nobody waits for any."""
        if self._side is None or not self._side.idle or self._rests:
            return None
        return self._every - update % self._every

    def after(self, update: int, view: Callable[[], View], settled: bool) -> None:
        """Give the params of an update to the process, if a video falls due and it is idle.

        They can be had only where the run has settled: where no later update has been begun.
        """
        if self._side is None:
            return
        self._look()
        if self._side.ready() and settled and not self._rests and not update % self._every:
            self._side.offer(update, view())

    def none_came(self) -> str:
        """What is said at the end if there is no video yet; empty if there is one, or none was asked for."""
        if self._side is None or self._side.given_up:
            return ""
        self._look()
        if self._written:
            return ""
        return (
            f"--video-every {self._every}: the run was over before the first video was; `tessera video {self._folder}` "
            "writes one"
        )

    def _look(self) -> None:
        """Count what has come."""
        assert self._side is not None
        taken = self._side.take()
        if taken is not None:
            self._written += 1
            self._rests_until = time.monotonic() + taken * (1 / FILMING_SHARE - 1)

    @property
    def _rests(self) -> bool:
        return time.monotonic() < self._rests_until

    def forget(self) -> None:
        """The run has gone back: what is being filmed is not what it will be."""
        if self._side is not None:
            self._side.withdraw()

    def close(self) -> None:
        """End the process."""
        if self._side is not None:
            self._side.close()
