"""Pictures of shapes as pixels, by Pillow."""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tessera.envs.drawing.shapes import Circle, Frame, Label, Picture, Point, Polygon, Rectangle, Shape, Stroke

FINER = 2
"""Pixels that are drawn for each one in a row, so that edges are smooth."""
HEIGHT = 480
"""Rows of a picture where nobody says how many."""


def as_pixels(frame: Frame, height: int | None = None) -> np.ndarray:
    """A frame as uint8 [height, width, 3] with even sides, which video codecs want; by default in its own size."""
    if isinstance(frame, Picture):
        return drawn(frame, _even(height or HEIGHT))
    size = _even(frame.shape[1] * (height or frame.shape[0]) / frame.shape[0]), _even(height or frame.shape[0])
    if size == (frame.shape[1], frame.shape[0]):
        return frame
    smooth = size[1] < 2 * frame.shape[0]  # the pixels of a small picture stay sharp
    how = Image.Resampling.LANCZOS if smooth else Image.Resampling.NEAREST
    return np.asarray(Image.fromarray(frame).resize(size, how))


def drawn(picture: Picture, height: int) -> np.ndarray:
    """Draw the shapes of a picture."""
    scale = FINER * height / picture.height
    width = _even(height * picture.width / picture.height)
    image = Image.new("RGB", (width * FINER, height * FINER), picture.background)
    canvas = ImageDraw.Draw(image, "RGBA")
    for shape in picture.shapes:
        _draw(canvas, shape, scale)
    return np.asarray(image.reduce(FINER))


def _draw(canvas: Any, shape: Shape, scale: float) -> None:
    match shape:
        case Rectangle(x, y, width, height, fill, stroke, line):
            box = [x * scale, y * scale, (x + width) * scale - 1, (y + height) * scale - 1]
            canvas.rectangle(_ordered(box), fill or None, stroke or None, _thick(line, scale, stroke))
        case Circle(x, y, radius, fill, stroke, line):
            box = [(x - radius) * scale, (y - radius) * scale, (x + radius) * scale, (y + radius) * scale]
            canvas.ellipse(box, fill or None, stroke or None, _thick(line, scale, stroke))
        case Polygon(points, fill, stroke, line):
            corners = _scaled(points, scale)
            if fill:
                canvas.polygon(corners, fill)
            if stroke:
                _line(canvas, [*corners, corners[0]], stroke, line * scale)
        case Stroke(points, colour, line):
            _line(canvas, _scaled(points, scale), colour, line * scale)
        case Label(x, y, text, size, colour):
            canvas.text((x * scale, y * scale), text, colour, font=_font(max(1, round(size * scale))), anchor="mm")


def _line(canvas: Any, points: list[Point], colour: str, width: float) -> None:
    canvas.line(points, colour, max(1, round(width)), joint="curve")
    if width > 2 and len(colour) == 7:  # where it shines through, ends would be seen twice
        for x, y in (points[0], points[-1]):
            canvas.ellipse([x - width / 2, y - width / 2, x + width / 2, y + width / 2], colour)


def _scaled(points: tuple[Point, ...], scale: float) -> list[Point]:
    return [(x * scale, y * scale) for x, y in points]


def _ordered(box: list[float]) -> list[float]:
    """Corners in the order that Pillow wants, for a rectangle thinner than a pixel."""
    return [box[0], box[1], max(box[0], box[2]), max(box[1], box[3])]


def _thick(line: float, scale: float, stroke: str) -> int:
    return max(1, round(line * scale)) if stroke else 0


def _even(length: float) -> int:
    return max(2, 2 * int(length / 2 + 0.5))


@functools.lru_cache(maxsize=32)
def _font(size: int) -> Any:
    """Matplotlib's own font, which has chess pieces and is there wherever Matplotlib is."""
    import matplotlib

    return ImageFont.truetype(os.path.join(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), size)
