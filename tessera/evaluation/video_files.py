"""Videos as files: mp4 by ffmpeg, gif by Pillow, svg where frames are made of shapes."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tessera.envs.drawing.pixels import as_pixels
from tessera.envs.drawing.shapes import Frame, Picture
from tessera.envs.drawing.svg import animated
from tessera.errors import TesseraError
from tessera.support.extras import install_hint
from tessera.support.files import replaced_file

GIF_FASTEST = 50
"""Frames of a second that viewers of gif show; they slow down what is faster."""
ENCODING = (
    "-c:v", "libx264", "-pix_fmt", "yuv420p", "-preset", "veryfast", "-crf", "20", "-movflags", "+faststart",
    "-threads", "1",
)  # fmt: skip
"""One thread: drawing takes longer than encoding."""


def check_name(path: Path) -> None:
    """Refuse what cannot be written, before anything is played."""
    if path.suffix.lower() not in WRITERS:
        raise TesseraError(f"-o {path}: a video is one of {', '.join(WRITERS)}: let the name end with it")
    if path.is_dir():
        raise TesseraError(f"-o {path} is a folder: name a file in it, such as {path / 'out.mp4'}")
    if not path.absolute().parent.is_dir():
        raise TesseraError(f"-o {path}: there is no folder {path.absolute().parent}: make it first")
    if path.suffix.lower() == ".mp4":
        _encoder()


def can_write(ending: str) -> bool:
    """Whether what writes files of this ending is installed."""
    try:
        return ending != ".mp4" or bool(_encoder())
    except TesseraError:
        return False


def write_video(path: Path, frames: Iterable[Frame], fps: float, height: int | None) -> int:
    """Write frames to a file that has its name only when it is whole: how many they were.

    Pixels are scaled to so many rows; by default they stay as they are, and shapes get as many as is usual.
    """
    counted = _Counted(frames)
    try:
        with replaced_file(path) as draft:
            WRITERS[path.suffix.lower()](draft, counted, fps, height)
    except OSError as error:
        reason = error.strerror or str(error).strip().partition("\n")[0]
        raise TesseraError(f"{path} cannot be written ({reason}): choose another place") from error
    return counted.count


class _Counted(Iterator[Frame]):
    """Frames, and how many of them were taken."""

    def __init__(self, frames: Iterable[Frame]) -> None:
        self._frames, self.count = iter(frames), 0

    def __next__(self) -> Frame:
        frame = next(self._frames)
        self.count += 1
        return frame


def _write_mp4(path: Path, frames: Iterator[Frame], fps: float, height: int | None) -> None:
    first = as_pixels(next(frames), height)
    command = [_encoder(), "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24"]
    command += ["-s", f"{first.shape[1]}x{first.shape[0]}", "-r", f"{fps:g}", "-i", "-", "-an", *ENCODING, str(path)]
    # a session of its own, so that an interrupt from the keyboard reaches this process alone, which then ends it
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    ) as encoder:
        assert encoder.stdin is not None
        assert encoder.stderr is not None
        try:
            for pixels in itertools.chain([first], (as_pixels(frame, height) for frame in frames)):
                encoder.stdin.write(pixels.tobytes())
            encoder.stdin.close()
        except BrokenPipeError:  # it has ended, and says why
            pass
        except BaseException:
            encoder.kill()
            raise
        if complaint := encoder.stderr.read().decode(errors="replace").strip():
            raise OSError(complaint.splitlines()[-1])


def _encoder() -> str:
    """The path of ffmpeg, which a package brings along."""
    try:
        import imageio_ffmpeg

        return imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError) as error:
        raise TesseraError(
            f"mp4 needs imageio-ffmpeg, which is missing: run {install_hint('video')}, or write a .gif"
        ) from error


def _write_gif(path: Path, frames: Iterator[Frame], fps: float, height: int | None) -> None:
    from PIL import Image

    def images() -> Iterator[Image.Image]:
        shown = 0  # hundredths of a second, in which gif counts
        for number, frame in enumerate(frames):
            until = round(100 * (number + 1) / fps)
            if until - shown < 100 // GIF_FASTEST and number:
                continue
            image = Image.fromarray(as_pixels(frame, height)).quantize(256, Image.Quantize.FASTOCTREE)
            image.info["duration"] = 10 * max(until - shown, 100 // GIF_FASTEST)
            shown = until
            yield image

    each = images()
    next(each).save(path, save_all=True, append_images=each, loop=0, optimize=False)


def _write_svg(path: Path, frames: Iterator[Frame], fps: float, height: int | None) -> None:
    pictures: list[Picture] = []
    for frame in frames:
        if not isinstance(frame, Picture):
            raise TesseraError(f"{path.suffix[1:]} needs shapes, and this environment draws pixels: write .mp4 or .gif")
        pictures.append(frame)
    path.write_text(animated(pictures, fps, height))


WRITERS: dict[str, Callable[[Path, Iterator[Frame], float, int | None], None]] = {
    ".mp4": _write_mp4,
    ".gif": _write_gif,
    ".svg": _write_svg,
}
"""Ending of a file's name -> what writes it."""
