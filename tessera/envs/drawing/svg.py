"""Pictures of shapes as SVG: one, or many as an animation that needs no script."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import escape

from tessera.envs.drawing.pixels import HEIGHT
from tessera.envs.drawing.shapes import Circle, Label, Picture, Polygon, Rectangle, Shape, Stroke
from tessera.errors import TesseraError

MOST_SHAPES = 200_000
"""Shapes of one animation: browsers choke on more."""


def animated(pictures: Sequence[Picture], fps: float, height: int | None = None) -> str:
    """Pictures one after the other, over and over. What all have in common at the back is written once."""
    first = pictures[0]
    height = height or HEIGHT
    runs = [(picture, len(list(same))) for picture, same in itertools.groupby(pictures)]
    common = _common([picture.shapes for picture, _ in runs])
    if sum(len(picture.shapes) - common for picture, _ in runs) > MOST_SHAPES:
        raise TesseraError("so long an animation is too large for svg: write .mp4, or choose a lower --max-steps")
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_number(first.width)} {_number(first.height)}" '
        f'height="{height}" width="{round(height * first.width / first.height)}">',
        f'<rect width="100%" height="100%" fill="{first.background}"/>',
        *map(_element, first.shapes[:common]),
    ]
    at = 0
    for picture, count in runs:
        lines.append(f"<g{' visibility=' + chr(34) + 'hidden' + chr(34) if at else ''}>")
        if len(runs) > 1:
            lines.append(_shown(at, at + count, len(pictures), fps))
        lines += [*map(_element, picture.shapes[common:]), "</g>"]
        at += count
    return "\n".join([*lines, "</svg>"]) + "\n"


def _common(shapes: Sequence[tuple[Shape, ...]]) -> int:
    """How many shapes all begin with."""
    alike = itertools.takewhile(lambda same: same.count(same[0]) == len(same), zip(*shapes, strict=False))
    return sum(1 for _ in alike)


def _shown(begin: int, end: int, of: int, fps: float) -> str:
    """Show a group from one picture to another."""
    times = {0.0: "hidden", begin / of: "visible", end / of: "hidden"}
    times.pop(1.0, None)
    keys = ";".join(_number(time, 6) for time in times)
    return (
        f'<animate attributeName="visibility" calcMode="discrete" dur="{_number(of / fps)}s" '
        f'repeatCount="indefinite" keyTimes="{keys}" values="{";".join(times.values())}"/>'
    )


def _element(shape: Shape) -> str:
    match shape:
        case Rectangle(x, y, width, height, fill, stroke, line):
            inset = line / 2 if stroke else 0.0
            place = (x + inset, y + inset, width - 2 * inset, height - 2 * inset)
            names = ("x", "y", "width", "height")
            return f"<rect{_sized(names, place)}{_painted(fill, stroke, line)}/>"
        case Circle(x, y, radius, fill, stroke, line):
            inset = line / 2 if stroke else 0.0
            return f"<circle{_sized(('cx', 'cy', 'r'), (x, y, radius - inset))}{_painted(fill, stroke, line)}/>"
        case Polygon(points, fill, stroke, line):
            return f'<polygon points="{_points(points)}"{_painted(fill, stroke, line)}/>'
        case Stroke(points, colour, line):
            ends = ' stroke-linecap="round" stroke-linejoin="round"'
            return f'<polyline points="{_points(points)}"{_painted("", colour, line)}{ends}/>'
        case Label(x, y, text, size, colour):
            return (
                f'<text{_sized(("x", "y", "font-size"), (x, y, size))} fill="{colour}" text-anchor="middle" '
                f'dominant-baseline="central" font-family="DejaVu Sans, sans-serif">{escape(text)}</text>'
            )


def _sized(names: Sequence[str], values: Sequence[float]) -> str:
    return "".join(f' {name}="{_number(value)}"' for name, value in zip(names, values, strict=True))


def _painted(fill: str, stroke: str, line: float) -> str:
    edge = f' stroke="{stroke}" stroke-width="{_number(line)}"' if stroke else ""
    return f' fill="{fill or "none"}"{edge}'


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{_number(x)},{_number(y)}" for x, y in points)


def _number(value: float, digits: int = 2) -> str:
    return f"{value:.{digits}f}".rstrip("0").rstrip(".") or "0"
