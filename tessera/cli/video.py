"""`tessera video`: greedy episodes of a run as a video."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from tessera.cli.flags import check_flags, read_flags
from tessera.cli.options import TrustOptions
from tessera.errors import TesseraError
from tessera.support.seeds import check_seed

if TYPE_CHECKING:
    from tessera.evaluation.filming import FilmedEpisode, Shot

HEIGHTS = (16, 4320)
"""The least and the most rows of pixels."""


@dataclass
class VideoOptions(TrustOptions):
    """Write greedy episodes of a run as a video."""

    run: tyro.conf.Positional[Path]
    """Run directory, or an agent that was saved."""
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("out.mp4")
    """Video to write: .mp4, .gif, or .svg where the environment is drawn as shapes."""
    episodes: int = 1
    """Episodes, one after the other."""
    seed: int = 0
    """Seed of the environment."""
    max_steps: int = 5000
    """Steps of all episodes together, after which the last one is cut."""
    fps: float | None = None
    """Steps that are shown in a second; default: as the environment says."""
    size: int | None = None
    """Rows of pixels; default: the environment's own, or 480 where it is drawn as shapes."""
    checkpoint: str = "newest"
    """newest, best, or the number of the update whose checkpoint to take."""
    opponent: str | None = None
    """Who games for two are played against, as for `tessera eval`; default: the agent plays both sides."""

    def check(self) -> None:
        """Refuse numbers that make no sense."""
        for flag, value in (("--episodes", self.episodes), ("--max-steps", self.max_steps)):
            if value < 1:
                raise TesseraError(f"{flag} {value}: at least one is needed")
        check_seed(self.seed, lowest=0)
        if self.fps is not None and not 0 < self.fps <= 1000:
            raise TesseraError(f"--fps {self.fps:g}: it must be above 0, and at most 1000")
        if self.size is not None and not HEIGHTS[0] <= self.size <= HEIGHTS[1]:
            raise TesseraError(f"--size {self.size}: rows of pixels are from {HEIGHTS[0]} to {HEIGHTS[1]}")


def video_command(arguments: list[str]) -> None:
    """Run `tessera video`."""
    check_flags(arguments, VideoOptions)
    options = read_flags(VideoOptions, arguments, "tessera video")
    options.check()
    from tessera.support.headless import draw_without_display

    draw_without_display()  # before anything that draws is imported
    from tessera.evaluation.filming import Camera
    from tessera.evaluation.video_files import check_name, write_video
    from tessera.runs.matches import against, find_opponent
    from tessera.runs.saved_run import load_run
    from tessera.support.cache import use_compilation_cache

    check_name(options.output)
    use_compilation_cache()
    trust = options.trusted()
    saved = load_run(options.run, trust, options.checkpoint)
    env = saved.env
    if options.opponent is not None:
        env = against(env, find_opponent(options.opponent, env, trust))
    camera = Camera(saved.algorithm, env, options.size)
    shots = camera.film(saved.view, options.episodes, options.seed, options.max_steps)
    played: list[FilmedEpisode] = []
    fps = options.fps or camera.fps
    frames = write_video(options.output, _told(shots, played), fps, options.size)
    mean = sum(episode.total for episode in played) / len(played)
    words = f"return {mean:g}" if len(played) == 1 else f"mean return {mean:g} over {len(played)} episodes"
    print(f"wrote {options.output} ({frames:,} frames, {frames / fps:.1f} s, {words})")


def _told(shots: Iterator[Shot], played: list[FilmedEpisode]) -> Iterator[Any]:
    """The frames; episodes are reported as they end, and noted."""
    for frame, episode in shots:
        yield frame
        if episode is not None:
            played.append(episode)
            cut = ", cut by --max-steps" if episode.cut else ""
            print(f"episode {len(played)}: {episode.length:,} steps, return {episode.total:g}{cut}")
