"""How JaxMARL's environments look. Functions take JaxMARL's environment and a state."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tessera.envs.drawing.kitchens import overcooked, overcooked_v2
from tessera.envs.drawing.shapes import (
    BLACK,
    BLUE,
    COLOURS,
    GREEN,
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
    Point,
    Rectangle,
    Shape,
    Stroke,
    cells,
    checkered,
)
from tessera.errors import TesseraError

SIDE = 480.0
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def particles(env: Any, state: Any) -> Picture:
    """Agents and landmarks, in their own colours and sizes; and what agents say."""
    places, sizes = np.asarray(state.p_pos), np.asarray(env.rad)
    half = max(1.5, float(np.abs(places).max()) + 0.2)  # who leaves is followed
    scale = SIDE / 2 / half
    bodies: list[Shape] = []
    for number in reversed(range(len(places))):  # agents, which come first, in front
        x, y = SIDE / 2 + scale * float(places[number, 0]), SIDE / 2 - scale * float(places[number, 1])
        edge = BLACK if number < env.num_agents else ""
        colour = "#" + "".join(f"{int(c):02x}" for c in np.asarray(env.colour[number])[:3])
        bodies.append(Circle(x, y, max(3.0, scale * float(sizes[number])), colour, edge, 1.5))
    said = [
        Label(90, SIDE - 20 - 24 * line, f"{env.agents[agent]}: {LETTERS[int(np.argmax(state.c[agent]))]}", 16)
        for line, agent in enumerate(np.flatnonzero(np.asarray(env.silent) == 0).tolist())
        if np.asarray(state.c).shape[-1]
    ]
    return Picture(SIDE, SIDE, (*bodies, *said))


def battle(env: Any, state: Any) -> Picture:
    """Units of two teams with their health; each has the letter of its kind."""
    world, state = getattr(env, "_env", env), getattr(state, "state", state)
    scale = SIDE / world.map_width
    shapes: list[Shape] = []
    for unit in np.flatnonzero(np.asarray(state.unit_alive)).tolist():
        kind = int(state.unit_types[unit])
        x, y = scale * float(state.unit_positions[unit, 0]), SIDE - scale * float(state.unit_positions[unit, 1])
        radius = 1.8 * scale * float(world.unit_type_radiuses[kind])  # larger than life, to be seen
        health = max(0.0, float(state.unit_health[unit]) / float(world.unit_type_health[kind]))
        shapes += [
            Circle(x, y, radius, BLUE if unit < world.num_allies else RED),
            Label(x, y, world.unit_type_shorthands[kind], 1.2 * radius, WHITE),
            Rectangle(x - radius, y - radius - 5, 2 * radius, 3, PALE),
            Rectangle(x - radius, y - radius - 5, 2 * radius * health, 3, GREEN),
        ]
    return Picture(SIDE, SIDE, tuple(shapes))


def coins(env: Any, state: Any) -> Picture:
    """Two players, who have rims, and a coin of each one's colour."""
    cell, shapes = 100.0, checkered(3, 3, 100.0, ("#f4f4f4", WHITE))
    coins = ((state.red_coin_pos, RED), (state.blue_coin_pos, BLUE))
    players = ((state.red_pos, RED, -0.2), (state.blue_pos, BLUE, 0.2))
    for place, colour in coins:
        row, column = np.ravel(place).tolist()
        shapes.append(Circle((column + 0.5) * cell, (row + 0.8) * cell, 12, YELLOW, colour, 6))
    for place, colour, aside in players:
        row, column = np.ravel(place).tolist()
        shapes.append(Circle((column + 0.5 + aside) * cell, (row + 0.4) * cell, 20, colour, BLACK, 2))
    return Picture(3 * cell, 3 * cell, tuple(shapes))


def robots(env: Any, state: Any) -> Picture:
    """Robots in a map, and their goals in the same colours; who has stopped is grey."""
    walls, size = np.asarray(state.map_data), float(env.map_obj.cell_size)
    if walls.ndim != 2:
        raise TesseraError("robots in a map of polygons cannot be drawn: choose a map of cells")
    rows = len(walls)
    cell = SIDE / rows
    grid = cells([(walls[::-1], GREY)], cell, WHITE)

    def place(at: Any) -> Point:
        return cell * float(at[0]) / size, SIDE - cell * float(at[1]) / size

    shapes: list[Shape] = []
    for robot, (at, goal, angle) in enumerate(zip(state.pos, state.goal, np.ravel(state.theta).tolist(), strict=True)):
        colour, (x, y), radius = COLOURS[robot % len(COLOURS)], place(at), cell * env.rad / size
        shown = GREY if state.done[robot] or state.move_term[robot] else colour
        ahead = (x + radius * math.cos(angle), y - radius * math.sin(angle))
        shapes += [
            Circle(*place(goal), radius / 2, colour + "80", colour, 2),
            Circle(x, y, radius, shown),
            Stroke(((x, y), ahead), BLACK, 2),
        ]
    return Picture(grid.width, grid.height, (*grid.shapes, *shapes), WHITE)


def riddle(env: Any, state: Any) -> Picture:
    """A room with a bulb and a prisoner; who has been in it is green."""
    agents, room = len(env.agents), int(state.agent_in_room)
    width, visited = max(300.0, 80.0 * agents), np.ravel(state.has_been)
    bulb = YELLOW if bool(state.bulb_state) else GREY
    shapes: list[Shape] = [Rectangle(width / 2 - 80, 20, 160, 130, PALE, BLACK, 2), Circle(width / 2, 45, 14, bulb)]
    for agent in range(agents):
        inside = agent == room
        x, y = (width / 2, 110.0) if inside else (width * (agent + 0.5) / agents, 220.0)
        shapes += [Circle(x, y, 24, GREEN if visited[agent] else ORANGE), Label(x, y, str(agent), 22, WHITE)]
    return Picture(width, 260, tuple(shapes))


LOOKS: dict[str, tuple[Callable[[Any, Any], Picture], float]] = {
    "MPE_": (particles, 10),
    "SMAX": (battle, 8),
    "HeuristicEnemySMAX": (battle, 8),
    "LearnedPolicyEnemySMAX": (battle, 8),
    "overcooked_v2": (overcooked_v2, 5),
    "overcooked": (overcooked, 5),
    "coin_game": (coins, 5),
    "jaxnav": (robots, 10),
    "switch_riddle": (riddle, 2),
}
"""Beginning of a name -> how it is drawn, and how many states of a second are shown; the first that fits."""


def artist_of(name: str, env: Any) -> Artist:
    """What draws the states of one of JaxMARL's environments."""
    named = name.partition(":")[2]
    draw, fps = next(look for start, look in LOOKS.items() if named.startswith(start))
    return Artist(lambda state: draw(env, state), fps)
