"""How the kitchens of JaxMARL's two Overcooked look: a tile for each place, and cooks with what they hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.envs.drawing.shapes import (
    BLACK,
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    ORANGE,
    RED,
    WHITE,
    Circle,
    Picture,
    Polygon,
    Rectangle,
    Shape,
    around,
)

CELL = 48.0
COUNTER, FLOOR, BROWN = "#b8b8b8", "#f8f8f4", "#8b5a2b"
FOODS = (ORANGE, GREEN, RED, BLUE)
TURNS = (-math.pi / 2, math.pi / 2, 0.0, math.pi)
"""Where a cook looks who faces north, south, east or west."""
EMPTY_POT = 23
"""What a pot shows in the first Overcooked before the first onion: it counts down with each, and then as it cooks."""


class Kitchen:
    """A picture of a kitchen, place by place."""

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns, self._shapes = rows, columns, list[Shape]()

    def picture(self) -> Picture:
        """What has been put in so far."""
        return Picture(self.columns * CELL, self.rows * CELL, tuple(self._shapes), FLOOR)

    def counter(self, row: int, column: int, mark: str = "") -> None:
        """A place where things can stand, with the colour of what it is for."""
        x, y = column * CELL, row * CELL
        self._shapes.append(Rectangle(x, y, CELL, CELL, COUNTER, GREY, 1))
        if mark:
            self._shapes.append(Rectangle(x + 5, y + 5, CELL - 10, CELL - 10, mark))

    def plate(self, row: int, column: int, foods: Sequence[str] = (), aside: float = 0.0) -> None:
        """A plate, with what is on it."""
        x, y = self._place(row, column, aside)
        self._shapes.append(Circle(x, y, 12 - 12 * aside, WHITE, GREY, 1))
        self.foods(row, column, foods, aside)

    def foods(self, row: int, column: int, foods: Sequence[str], aside: float = 0.0) -> None:
        """Up to three of what is eaten."""
        x, y = self._place(row, column, aside)
        for number, colour in enumerate(foods):
            turn = 2 * math.pi * number / max(len(foods), 1)
            far = 5.0 if len(foods) > 1 else 0.0
            self._shapes.append(Circle(x + far * math.cos(turn), y + far * math.sin(turn), 5, colour, BLACK, 0.8))

    def pot(self, row: int, column: int, foods: Sequence[str], ready: bool) -> None:
        """A pot with what is in it, and a green rim once it is cooked."""
        self.counter(row, column)
        x, y = self._place(row, column, 0.0)
        self._shapes.append(Circle(x, y, 19, BLACK, GREEN if ready else GREY, 3))
        self.foods(row, column, foods)

    def cook(self, row: int, column: int, faces: int, number: int) -> None:
        """A cook, who looks to where the tip is."""
        corners = around(self._place(row, column, 0.0), ((20, 0), (-16, -16), (-16, 16)), TURNS[faces])
        self._shapes.append(Polygon(corners, COLOURS[(3, 0, 2, 1, 4, 5, 6)[number % 7]], BLACK, 1))

    def _place(self, row: int, column: int, aside: float) -> tuple[float, float]:
        return (column + 0.5 + aside) * CELL, (row + 0.5 + aside) * CELL


def overcooked(env: Any, state: Any) -> Picture:
    """The first Overcooked, where all soups are of onions."""
    rows, columns = np.asarray(state.wall_map).shape
    border = (np.asarray(state.maze_map).shape[0] - rows) // 2
    grid = np.asarray(state.maze_map)[border : border + rows, border : border + columns]
    kitchen, soup = Kitchen(rows, columns), (ORANGE,) * 3
    for (row, column), kind in np.ndenumerate(grid[..., 0]):
        match int(kind):
            case 2:
                kitchen.counter(row, column)
            case 4 | 6 | 7 as place:
                kitchen.counter(row, column, {4: ORANGE, 6: WHITE, 7: GREEN}[place])
            case 8:
                left = int(grid[row, column, 2])
                kitchen.pot(row, column, soup[: min(EMPTY_POT - left, 3)], ready=left == 0)
            case 3 | 5 | 9 as thing:
                kitchen.counter(row, column)
                _put(kitchen, row, column, thing, soup)
    for number, (column, row) in enumerate(np.asarray(state.agent_pos).tolist()):
        kitchen.cook(row, column, int(state.agent_dir_idx[number]), number)
        _put(kitchen, row, column, int(state.agent_inv[number]), soup, aside=0.25)
    return kitchen.picture()


def _put(kitchen: Kitchen, row: int, column: int, thing: int, soup: Sequence[str], aside: float = 0.0) -> None:
    """Put down an onion, a plate or a dish."""
    if thing == 3:
        kitchen.foods(row, column, soup[:1], aside)
    elif thing in (5, 9):
        kitchen.plate(row, column, soup if thing == 9 else (), aside)


def overcooked_v2(env: Any, state: Any) -> Picture:
    """The second Overcooked, with several foods, and recipes that are shown."""
    grid = np.asarray(state.grid)
    kitchen = Kitchen(*grid.shape[:2])
    marks = {4: GREEN, 6: BROWN, 7: BROWN, 9: WHITE}
    for (row, column), kind in np.ndenumerate(grid[..., 0]):
        held, more = int(grid[row, column, 1]), int(grid[row, column, 2])
        if kind == 5:
            kitchen.pot(row, column, _foods(held), ready=bool(held & 2))
        elif kind >= 10:
            kitchen.counter(row, column, FOODS[(int(kind) - 10) % len(FOODS)])
        elif kind in (1, 4, 6, 7, 9):
            kitchen.counter(row, column, marks.get(int(kind), ""))
            shown = int(state.recipe) | 3 if kind == 6 or (kind == 7 and more > 0) else held
            _serve(kitchen, row, column, shown)
    agents = state.agents
    for number, (x, y) in enumerate(zip(np.ravel(agents.pos.x), np.ravel(agents.pos.y), strict=True)):
        kitchen.cook(int(y), int(x), int(np.ravel(agents.dir)[number]), number)
        _serve(kitchen, int(y), int(x), int(np.ravel(agents.inventory)[number]), aside=0.25)
    return kitchen.picture()


def _serve(kitchen: Kitchen, row: int, column: int, held: int, aside: float = 0.0) -> None:
    """Put down what a number stands for: one bit for a plate, one for cooked, then two for each food."""
    if held & 1:
        kitchen.plate(row, column, _foods(held), aside)
    else:
        kitchen.foods(row, column, _foods(held), aside)


def _foods(held: int) -> list[str]:
    """Colours of the foods that a number stands for."""
    return [FOODS[k % len(FOODS)] for k in range(8) for _ in range(held >> (2 + 2 * k) & 3)]
