"""How pgx's games look. Who moves first is black, X or at the bottom. Functions take a state of NumPy arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.envs.boards import (
    CARDS,
    KUHN,
    LEDUC,
    chess_cells,
    hex_signs,
    othello_signs,
    shogi_cells,
    shogi_hands,
)
from tessera.envs.drawing.shapes import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    PALE,
    RED,
    WHITE,
    YELLOW,
    Artist,
    Circle,
    Label,
    Picture,
    Polygon,
    Rectangle,
    Shape,
    Stroke,
    around,
    checkered,
)

CELL = 60.0
WOOD, FELT, LIGHT, DARK = "#e3b778", "#2e7d4f", "#f0d9b5", "#b58863"
FPS = 1.5
"""Moves that are shown in a second."""
CHESS_MEN = "♟♞♝♜♛♚"
"""In the order of the pieces; the filled ones, which are painted in the colour of their side."""


def tic_tac_toe(state: Any) -> Picture:
    """Crosses and circles."""
    shapes: list[Shape] = [_line(CELL * k, 0, CELL * k, 3 * CELL) for k in (1, 2)]
    shapes += [_line(0, CELL * k, 3 * CELL, CELL * k) for k in (1, 2)]
    for place, stone in enumerate(np.ravel(state._x.board).tolist()):
        row, column = divmod(place, 3)
        x, y = (column + 0.5) * CELL, (row + 0.5) * CELL
        if stone == 0:
            shapes += [Stroke(around((x, y), ((-16, s * -16), (16, s * 16))), BLUE, 6) for s in (1, -1)]
        elif stone == 1:
            shapes.append(Circle(x, y, 19, "", ORANGE, 6))
    return Picture(3 * CELL, 3 * CELL, tuple(shapes))


def connect_four(state: Any) -> Picture:
    """Discs in a rack; the first player's are yellow."""
    shapes = []
    for place, stone in enumerate(np.ravel(state._x.board).tolist()):
        row, column = divmod(place, 7)
        colour = {-1: WHITE, 0: YELLOW, 1: RED}[stone]
        shapes.append(Circle((column + 0.5) * CELL, (row + 0.5) * CELL, 24, colour))
    return Picture(7 * CELL, 6 * CELL, tuple(shapes), BLUE)


def othello(state: Any) -> Picture:
    """Discs on a green board."""
    lines = [_line(k * CELL, 0, k * CELL, 8 * CELL, 1) for k in range(9)]
    lines += [_line(0, k * CELL, 8 * CELL, k * CELL, 1) for k in range(9)]
    return Picture(8 * CELL, 8 * CELL, (*lines, *_stones(othello_signs(state), 8, 0.5)), FELT)


def go(state: Any) -> Picture:
    """Stones where lines cross."""
    ends = (0.5 * CELL, 8.5 * CELL)
    lines = [_line((k + 0.5) * CELL, ends[0], (k + 0.5) * CELL, ends[1], 1) for k in range(9)]
    lines += [_line(ends[0], (k + 0.5) * CELL, ends[1], (k + 0.5) * CELL, 1) for k in range(9)]
    dots = [Circle((x + 0.5) * CELL, (y + 0.5) * CELL, 4, BLACK) for x, y in ((2, 2), (6, 2), (4, 4), (2, 6), (6, 6))]
    return Picture(9 * CELL, 9 * CELL, (*lines, *dots, *_stones(np.sign(state._x.board), 9, 0.5)), WOOD)


def hexagons(state: Any) -> Picture:
    """Cells of six sides; the first player, in blue, connects top and bottom, and the other one, orange, the sides."""
    radius = 22.0
    width, height = math.sqrt(3) * radius, 1.5 * radius
    corners = tuple((radius * math.sin(k * math.pi / 3), -radius * math.cos(k * math.pi / 3)) for k in range(6))
    signs, margin = np.asarray(hex_signs(state)).reshape(11, 11), 30.0
    shapes: list[Shape] = []

    def centre(row: float, column: float) -> tuple[float, float]:
        return margin + width * (column + row / 2 + 0.5), margin + radius + height * row

    for ends, colour in (
        (((-0.6, -0.4), (-0.6, 10.7)), BLUE),
        (((10.6, -0.7), (10.6, 10.4)), BLUE),
        (((-0.3, -0.8), (10.3, -0.8)), ORANGE),
        (((-0.3, 10.8), (10.3, 10.8)), ORANGE),
    ):
        shapes.append(Stroke(tuple(centre(*end) for end in ends), colour, 8))
    fills = {0: WHITE, 1: BLUE, -1: ORANGE}
    for (row, column), sign in np.ndenumerate(signs):
        shapes.append(Polygon(around(centre(row, column), corners), fills[int(sign)], GREY, 1.5))
    return Picture(2 * margin + width * 16, 2 * margin + 2 * radius + height * 10, tuple(shapes), PALE)


def chess(state: Any) -> Picture:
    """Pieces on a board of five by five."""
    shapes = checkered(5, 5, CELL, (LIGHT, DARK))
    for (row, column), piece in np.ndenumerate(chess_cells(state)):
        if piece:
            man, white = CHESS_MEN[abs(piece) - 1], piece > 0
            x, y = (column + 0.5) * CELL, (row + 0.5) * CELL
            rim = [
                Label(x + dx, y + dy, man, 46, BLACK if white else WHITE)
                for dx, dy in ((-1, 0), (1, 0), (0, -1), (0, 1))
            ]
            shapes += [*rim, Label(x, y, man, 46, WHITE if white else BLACK)]
    return Picture(5 * CELL, 5 * CELL, tuple(shapes))


def animal_shogi(state: Any) -> Picture:
    """Pieces that point to the other side, with the letter of their animal; at the edges those that were taken."""
    cells, (first, second) = shogi_cells(state), shogi_hands(state)
    side = 0.9 * CELL
    shapes: list[Shape] = [
        Rectangle(side + column * CELL, row * CELL, CELL, CELL, WOOD, BLACK, 1)
        for row in range(4)
        for column in range(3)
    ]
    for (row, column), piece in np.ndenumerate(cells):
        if piece:
            x, y = side + (column + 0.5) * CELL, (row + 0.5) * CELL
            shapes += _animal(x, y, "CEGLH"[abs(piece) - 1], piece > 0, 1.0)
    for hand, ours in ((first, True), (second, False)):
        for number, letter in enumerate(hand):
            down = (3.6 - 0.6 * number) if ours else (0.4 + 0.6 * number)
            x = side * 1.5 + 3 * CELL if ours else side / 2
            shapes += _animal(x, down * CELL, letter, ours, 0.6)
    return Picture(3 * CELL + 2 * side, 4 * CELL, tuple(shapes), PALE)


def _animal(x: float, y: float, letter: str, ours: bool, size: float) -> list[Shape]:
    tip = -25 if ours else 25
    corners = tuple(
        (px * size, py * size) for px, py in ((0, tip), (22, tip * 0.5), (22, -tip), (-22, -tip), (-22, tip * 0.5))
    )
    return [
        Polygon(around((x, y), corners), LIGHT if ours else "#ffd6c2", BLACK, 1.5),
        Label(x, y + 3 * size * (1 if ours else -1), letter, 26 * size, BLACK if ours else RED),
    ]


def cards(moves: Sequence[str]) -> Callable[[Any], Picture]:
    """Cards of both players, the one on the table, and what was said; who began is at the bottom."""

    def draw(state: Any) -> Picture:
        dealt, first = [CARDS[int(card)] for card in np.ravel(state.game._cards)], int(state.first)
        shapes = _card(150, 40, dealt[1 - first], ORANGE) + _card(150, 260, dealt[first], BLUE)
        if len(dealt) > 2:
            shapes += _card(150, 150, dealt[2] if int(state.game._round) > 0 else "", BLACK)
        made = [moves[int(move)] for move in np.ravel(state.moves) if move >= 0]
        shapes += [Label(330, 50 + 34 * k, f"{k + 1}. {word}", 22, WHITE) for k, word in enumerate(made)]
        return Picture(420, 360, tuple(shapes), FELT)

    return draw


def _card(x: float, y: float, letter: str, colour: str) -> list[Shape]:
    """A card with a letter, or its back."""
    shape = Rectangle(x - 32, y - 34, 64, 88, WHITE if letter else RED, BLACK, 2)
    return [shape, Label(x, y + 10, letter, 44, colour)] if letter else [shape]


def _stones(signs: Any, side: int, middle: float) -> list[Shape]:
    """Black and white stones: 1 is black, -1 white."""
    shapes: list[Shape] = []
    for (row, column), sign in np.ndenumerate(np.asarray(signs).reshape(side, side)):
        if sign:
            fill = BLACK if sign > 0 else WHITE
            shapes.append(Circle((column + middle) * CELL, (row + middle) * CELL, 0.42 * CELL, fill, BLACK, 1))
    return shapes


def _line(x: float, y: float, to_x: float, to_y: float, line: float = 3) -> Shape:
    return Stroke(((x, y), (to_x, to_y)), BLACK, line)


LOOKS: dict[str, Callable[[Any], Picture]] = {
    "tic_tac_toe": tic_tac_toe,
    "connect_four": connect_four,
    "othello": othello,
    "hex": hexagons,
    "animal_shogi": animal_shogi,
    "gardner_chess": chess,
    "go_9x9": go,
    "kuhn_poker": cards(KUHN),
    "leduc_holdem": cards(LEDUC),
}
"""Game -> how it is drawn."""


def artist_of(name: str) -> Artist:
    """What draws the states of a game."""
    return Artist(LOOKS[name.partition(":")[2].partition("?")[0]], FPS)
