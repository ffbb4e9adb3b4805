"""How gymnax's environments look, by name. Functions take gymnax's environment, its parameters and a state."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tessera.envs.drawing.shapes import (
    BLACK,
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    RED,
    SKY,
    WHITE,
    YELLOW,
    Artist,
    Circle,
    Picture,
    Point,
    Polygon,
    Rectangle,
    Shape,
    Stroke,
    around,
    cells,
)
from tessera.errors import TesseraError

Draw = Callable[[Any, Any, Any], Picture]


def cart_pole(env: Any, params: Any, state: Any) -> Picture:
    """A cart on a track, with a pole."""
    scale = 280 / float(params.x_threshold)
    x, y, angle = 300 + float(state.x) * scale, 300.0, float(state.theta)
    length = 2 * float(params.length) * scale
    end = (x + length * math.sin(angle), y - length * math.cos(angle))
    shapes: tuple[Shape, ...] = (
        Stroke(((0, y), (600, y)), GREY, 2),
        Rectangle(x - 32, y - 18, 64, 36, BLACK),
        Stroke(((x, y), end), ORANGE, 12),
        Circle(x, y, 6, BLUE),
    )
    return Picture(600, 400, shapes)


def pendulum(env: Any, params: Any, state: Any) -> Picture:
    """A rod that hangs from a pivot; the bar below is the torque."""
    angle = float(state.theta)
    end = (200 + 150 * math.sin(angle), 200 - 150 * math.cos(angle))
    torque = 120 * float(np.squeeze(state.last_u)) / float(params.max_torque)
    shapes: tuple[Shape, ...] = (
        Stroke(((200, 200), end), RED, 22),
        Circle(200, 200, 6, BLACK),
        Stroke(((200, 385), (200 + torque, 385)), BLUE, 8),
    )
    return Picture(400, 400, shapes)


def acrobot(env: Any, params: Any, state: Any) -> Picture:
    """Two links, and the height that the second one has to reach."""
    first, second = float(state.joint_angle1), float(state.joint_angle1) + float(state.joint_angle2)
    one, two = 90 * float(params.link_length_1), 90 * float(params.link_length_2)
    joint = (200 + one * math.sin(first), 200 + one * math.cos(first))
    end = (joint[0] + two * math.sin(second), joint[1] + two * math.cos(second))
    shapes: tuple[Shape, ...] = (
        Stroke(((0, 110), (400, 110)), GREEN, 2),
        Stroke(((200, 200), joint), BLUE, 14),
        Stroke((joint, end), SKY, 14),
        Circle(200, 200, 6, BLACK),
        Circle(*joint, 6, BLACK),
    )
    return Picture(400, 400, shapes)


def mountain_car(env: Any, params: Any, state: Any) -> Picture:
    """A car between two hills, and a flag."""
    low, high = float(params.min_position), float(params.max_position)

    def place(position: float) -> Point:
        return 600 * (position - low) / (high - low), 320 - 110 * (math.sin(3 * position) + 1)

    x, y = place(float(state.position))
    # the slope of the hill, in pixels
    slope = math.atan2(-330 * math.cos(3 * float(state.position)), 600 / (high - low))
    flag_x, flag_y = place(float(params.goal_position))
    flag = ((flag_x, flag_y - 60), (flag_x + 26, flag_y - 51), (flag_x, flag_y - 42))
    shapes: tuple[Shape, ...] = (
        Stroke(tuple(place(p) for p in np.linspace(low, high, 60).tolist()), GREY, 3),
        Stroke(((flag_x, flag_y), (flag_x, flag_y - 60)), BLACK, 2),
        Polygon(flag, YELLOW, BLACK, 1),
        Polygon(around((x, y), ((-20, -8), (20, -8), (20, -24), (-20, -24)), slope), BLACK),
        *(Circle(*around((x, y), ((side, -7),), slope)[0], 7, GREY) for side in (-11, 11)),
    )
    return Picture(600, 400, shapes)


def min_atar(env: Any, params: Any, state: Any) -> Picture:
    """MinAtar's board: a colour for each channel of the observation, the first one in front."""
    board = np.asarray(env.get_obs(state, params))
    colours = (*COLOURS, PALE, GREEN + "aa", ORANGE + "aa")
    return cells([(board[..., k], colours[k]) for k in reversed(range(board.shape[-1]))])


def catch(env: Any, params: Any, state: Any) -> Picture:
    """A ball that falls, and a paddle."""
    ball, paddle = (state.ball_y, state.ball_x, ORANGE), (state.paddle_y, state.paddle_x, BLUE)
    return _marked(np.zeros((env.rows, env.columns)), ball, paddle)


def deep_sea(env: Any, params: Any, state: Any) -> Picture:
    """A diver who goes down one row at a step, and the treasure."""
    row, column = (min(int(x), env.size - 1) for x in (state.row, state.column))
    return _marked(np.zeros((env.size, env.size)), (env.size - 1, env.size - 1, YELLOW), (row, column, ORANGE))


def maze(env: Any, params: Any, state: Any) -> Picture:
    """Walls, a goal, and where the agent is."""
    return _marked(np.asarray(env.occupied_map), (*state.goal, GREEN), (*state.pos, ORANGE))


def frozen_lake(env: Any, params: Any, state: Any) -> Picture:
    """Ice with holes, and a goal."""
    tiles, cell = np.asarray(env.desc), 60.0
    rows, columns = tiles.shape
    row, column = divmod(int(state.position), columns)
    colours = (PALE, "#e8f4fb", BLACK, GREEN)  # start, frozen, hole, goal
    shapes: list[Shape] = [
        Rectangle(x * cell, y * cell, cell, cell, colours[tiles[y, x]], GREY, 1)
        for y in range(rows)
        for x in range(columns)
    ]
    shapes.append(Circle((column + 0.5) * cell, (row + 0.5) * cell, 0.3 * cell, ORANGE))
    return Picture(columns * cell, rows * cell, tuple(shapes))


def point_robot(env: Any, params: Any, state: Any) -> Picture:
    """A point, and a goal on a half circle."""
    scale = 200 / float(params.circle_radius)
    arc = tuple((250 + 200 * math.cos(a), 260 - 200 * math.sin(a)) for a in np.linspace(0, math.pi, 60).tolist())
    goal, at = ((250 + scale * float(p[0]), 260 - scale * float(p[1])) for p in (state.goal, state.pos))
    shapes: tuple[Shape, ...] = (
        Stroke(arc, GREY, 2),
        Circle(*goal, scale * float(params.goal_radius), GREEN + "80"),
        Circle(*at, 8, ORANGE),
    )
    return Picture(500, 320, shapes)


def reacher(env: Any, params: Any, state: Any) -> Picture:
    """An arm, and a goal."""
    scale = 180 / env.num_joints
    points = [(200.0, 200.0)]
    for angle in np.asarray(state.angles).tolist():
        points.append((points[-1][0] + scale * math.cos(angle), points[-1][1] - scale * math.sin(angle)))
    goal = (200 + scale * float(state.goal_xy[0]), 200 - scale * float(state.goal_xy[1]))
    joints = (Circle(*point, 7, BLACK) for point in points[:-1])
    return Picture(400, 400, (Circle(*goal, 10, GREEN), Stroke(tuple(points), BLUE, 12), *joints))


def swimmer(env: Any, params: Any, state: Any) -> Picture:
    """A swimmer among urchins, and a goal."""

    def place(xy: Any) -> Point:
        return 200 + 150 * float(xy[0]), 200 - 150 * float(xy[1])

    urchins = (Circle(*place(xy), 14, BLACK) for xy in state.urchin_xys)
    shapes = (*urchins, Circle(*place(state.goal_xy), 12, GREEN), Circle(*place(state.xy), 10, ORANGE))
    return Picture(400, 400, shapes, "#e8f4fb")


def pong(env: Any, params: Any, state: Any) -> Picture:
    """Two paddles and a ball; the agent's is on the left."""
    cell = 400 / env.height
    reach = env.paddle_half_height
    ball = (math.floor(float(place)) + 0.5 for place in reversed(state.ball_position))
    paddles = [
        Rectangle(x * cell, (math.floor(float(y)) - reach) * cell, cell, (2 * reach + 1) * cell, colour)
        for x, y, colour in zip((0, env.width - 1), state.paddle_centers, (SKY, WHITE), strict=True)
    ]
    x, y = (place * cell for place in ball)
    return Picture(env.width * cell, 400, (*paddles, Circle(x, y, cell / 2, ORANGE)), BLACK)


def _marked(walls: np.ndarray, *marks: tuple[Any, Any, str]) -> Picture:
    """A grid with walls, and some cells by row, column and colour."""
    layers = [(walls, GREY)]
    for row, column, colour in marks:
        mark = np.zeros(walls.shape)
        mark[int(row), int(column)] = 1
        layers.append((mark, colour))
    return cells(layers, background="#f4f4f4")


LOOKS: dict[str, tuple[Draw, float]] = {
    "CartPole-v1": (cart_pole, 50),
    "Pendulum-v1": (pendulum, 20),
    "Acrobot-v1": (acrobot, 15),
    "MountainCar-v0": (mountain_car, 30),
    "MountainCarContinuous-v0": (mountain_car, 30),
    **{f"{game}-MinAtar": (min_atar, 15) for game in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")},
    "Catch-bsuite": (catch, 5),
    "DeepSea-bsuite": (deep_sea, 5),
    "FourRooms-misc": (maze, 5),
    "MetaMaze-misc": (maze, 5),
    "FrozenLake-misc": (frozen_lake, 5),
    "PointRobot-misc": (point_robot, 15),
    "Reacher-misc": (reacher, 20),
    "Swimmer-misc": (swimmer, 20),
    "Pong-misc": (pong, 15),
}
"""Name -> how it is drawn, and how many states of a second are shown; bandits and chains have no look."""


def artist_of(name: str, env: Any, params: Any) -> Artist:
    """What draws the states of one of gymnax's environments; refuse one that has no look."""
    found = LOOKS.get(name.partition(":")[2].partition("?")[0])
    if found is None:
        known = ", ".join(LOOKS)
        raise TesseraError(f"{name} cannot be drawn: there is nothing to see in it; gymnax's others can be: {known}")
    draw, fps = found
    return Artist(lambda state: draw(env, params, state), fps)
