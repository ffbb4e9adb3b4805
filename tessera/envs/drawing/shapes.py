"""Pictures made of shapes, which can be turned into pixels or SVG; and what draws the states of an environment.

Coordinates grow to the right and down. Colours are `#rrggbb`, or `#rrggbbaa` to let through what is behind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Point = tuple[float, float]

BLACK, WHITE, GREY, PALE = "#222222", "#ffffff", "#888888", "#dddddd"
BLUE, ORANGE, GREEN, RED, PURPLE, YELLOW, SKY = (
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#f0e442", "#56b4e9",
)  # fmt: skip
COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, YELLOW, SKY)
"""Colours that people with any kind of sight can tell apart."""


@dataclass(frozen=True)
class Rectangle:
    """An upright rectangle by its corner at the top left."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    stroke: str = ""
    line: float = 0.0
    """Width of the stroke, which is around the edge."""


@dataclass(frozen=True)
class Circle:
    """A circle by its centre."""

    x: float
    y: float
    radius: float
    fill: str
    stroke: str = ""
    line: float = 0.0


@dataclass(frozen=True)
class Polygon:
    """A closed shape by its corners."""

    points: tuple[Point, ...]
    fill: str
    stroke: str = ""
    line: float = 0.0


@dataclass(frozen=True)
class Stroke:
    """A line through points, with round ends."""

    points: tuple[Point, ...]
    colour: str
    line: float


@dataclass(frozen=True)
class Label:
    """A word around a point."""

    x: float
    y: float
    text: str
    size: float
    colour: str = BLACK


Shape = Rectangle | Circle | Polygon | Stroke | Label


@dataclass(frozen=True)
class Picture:
    """Shapes, the last one in front, on a background."""

    width: float
    height: float
    shapes: tuple[Shape, ...]
    background: str = WHITE


Frame = np.ndarray | Picture
"""One picture of a film: pixels, uint8 [height, width, 3], or shapes."""


@dataclass(frozen=True)
class Artist:
    """Draws the states of a compiled environment."""

    draw: Callable[[Any], Frame]
    """What a state, of NumPy arrays, looks like."""
    fps: float
    """States of a second, at the pace at which they are watched."""


def around(middle: Point, points: Iterable[Point], angle: float = 0.0) -> tuple[Point, ...]:
    """Points relative to `middle`, turned clockwise by an angle in radians."""
    sin, cos = math.sin(angle), math.cos(angle)
    return tuple((middle[0] + x * cos - y * sin, middle[1] + x * sin + y * cos) for x, y in points)


def checkered(rows: int, columns: int, cell: float, colours: Sequence[str]) -> list[Shape]:
    """The squares of a board, in turn of these colours."""
    return [
        Rectangle(column * cell, row * cell, cell, cell, colours[(row + column) % len(colours)])
        for row in range(rows)
        for column in range(columns)
    ]


def cells(layers: Sequence[tuple[np.ndarray, str]], cell: float = 48.0, background: str = BLACK) -> Picture:
    """A grid of squares: a layer [rows, columns] has its colour where it is not zero, the last layer in front."""
    rows, columns = layers[0][0].shape
    shapes = [
        Rectangle(float(x) * cell, float(y) * cell, cell, cell, colour)
        for layer, colour in layers
        for y, x in zip(*np.nonzero(layer), strict=True)
    ]
    return Picture(columns * cell, rows * cell, tuple(shapes), background)
