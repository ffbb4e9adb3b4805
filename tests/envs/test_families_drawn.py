"""Each family draws its own environments: states by their looks, and whole episodes on a machine without a display."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from agent.written_runs import write_run
from PIL import Image

from tessera import MAPPO, PPO
from tessera.envs import make
from tessera.envs.ale import InColour
from tessera.envs.drawing import jaxmarl, pgx
from tessera.envs.drawing.kitchens import Kitchen, overcooked
from tessera.envs.drawing.pixels import as_pixels
from tessera.envs.drawing.reel import Reel
from tessera.envs.drawing.shapes import BLACK, BLUE, ORANGE, RED, WHITE, YELLOW, Circle, Label, Polygon, Stroke
from tessera.envs.envpool import RecordedPool
from tessera.envs.jaxmarl import TERMINATING, TIMED
from tessera.envs.pgx import GAMES


def test_every_family_of_teams_and_every_game_has_a_look():
    assert set(pgx.LOOKS) == set(GAMES)
    for name in (*TIMED, *TERMINATING):
        assert any(name.startswith(start) for start in jaxmarl.LOOKS)


def board(*stones: int) -> SimpleNamespace:
    return SimpleNamespace(_x=SimpleNamespace(board=np.array(stones)))


def test_crosses_are_the_first_players_and_stand_where_they_were_put():
    picture = pgx.tic_tac_toe(board(-1, -1, 0, -1, 1, -1, -1, -1, -1))
    crosses = [shape for shape in picture.shapes if isinstance(shape, Stroke) and shape.colour == BLUE]
    assert len(crosses) == 2
    assert all(120 < x < 180 and 0 < y < 60 for cross in crosses for x, y in cross.points)
    (circle,) = (shape for shape in picture.shapes if isinstance(shape, Circle))
    assert (circle.x, circle.y) == (90, 90)


def test_discs_lie_where_they_fell():
    stones = np.full((6, 7), -1)
    stones[5, 2], stones[4, 2] = 0, 1
    discs = {(shape.x, shape.y): shape.fill for shape in pgx.connect_four(board(*stones.ravel())).shapes}
    assert discs[150, 330] == YELLOW
    assert discs[150, 270] == RED
    assert list(discs.values()).count(WHITE) == 40


def test_a_hidden_card_is_shown_in_the_second_round():
    game = SimpleNamespace(_cards=np.array([0, 2, 1]), _round=0)
    state = SimpleNamespace(game=game, first=1, moves=np.array([0, -1]))

    def words():
        return [shape.text for shape in pgx.cards(("call", "raise"))(state).shapes if isinstance(shape, Label)]

    assert words() == ["J", "K", "1. call"]
    game._round = 1
    assert words() == ["J", "K", "Q", "1. call"]


def test_cooks_hold_what_they_hold_and_look_where_they_look():
    env = make("jaxmarl:overcooked")
    state = jax.device_get(jax.jit(env.reset)(jax.random.key(0))[0])
    state = state.replace(agent_inv=np.array([3, 5]), agent_dir_idx=np.array([2, 3]))
    picture = overcooked(None, state)
    (one, two) = (shape for shape in picture.shapes if isinstance(shape, Polygon))
    assert one.points[0][0] > one.points[1][0]  # east
    assert two.points[0][0] < two.points[1][0]
    held = [shape.fill for shape in picture.shapes[picture.shapes.index(one) :] if isinstance(shape, Circle)]
    assert held == [ORANGE, WHITE]


def test_a_pot_shows_what_is_in_it():
    kitchen = Kitchen(1, 1)
    kitchen.pot(0, 0, [ORANGE, RED], ready=False)
    fills = [shape.fill for shape in kitchen.picture().shapes if isinstance(shape, Circle)]
    assert fills == [BLACK, ORANGE, RED]


def test_particles_that_leave_are_followed():
    env = make("jaxmarl:MPE_simple_spread_v3")
    artist = env.artist(100)
    state = jax.device_get(jax.jit(env.reset)(jax.random.key(0))[0])
    picture = artist.draw(state.replace(p_pos=np.array([[0, 0], [7, -7], [1, 1], [0, 1], [1, 0], [0, 0]])))
    assert all(0 < shape.x < picture.width and 0 < shape.y < picture.height for shape in picture.shapes)


class Game:
    """A vector of one game of three steps, which is reset in the step that ends it; a frame shows the count."""

    def __init__(self, shape):
        self.shape, self.count, self.actions = shape, 0, []

    def frame(self, count):
        return np.full((1, *self.shape), count, np.uint8)

    def reset(self, **options):
        return self.frame(0), {}

    def step(self, actions):
        self.actions.append(int(actions[0]))
        self.count += 1
        ended, final = self.count % 3 == 0, self.frame(self.count)
        shown = self.frame(0) if ended else final
        return shown, np.ones(1), np.array([ended]), np.zeros(1, bool), {"final_obs": final} if ended else {}

    def render(self):
        return self.frame(self.count)

    def close(self):
        pass


def test_a_game_in_colours_gets_the_same_actions_and_shows_its_last_frame():
    played, seen, reel = Game((4, 84, 84)), Game((1, 2, 2, 3)), Reel()
    both = InColour(played, seen, reel)
    assert both.reset(seed=3)[0].shape == (1, 4, 84, 84)
    for action in (5, 6, 7):
        both.step(np.array([action]))
    assert played.actions == seen.actions == [5, 6, 7]
    assert [(int(frame.flat[0]), begins) for frame, begins in reel.take()] == [
        (0, True), (1, False), (2, False), (3, False), (0, True),
    ]  # fmt: skip


def test_a_pool_that_resets_in_a_step_of_its_own_begins_the_next_episode_there():
    reel = Reel()
    pool = RecordedPool(Game((2, 2, 3)), reel)
    pool.reset()
    for _ in range(4):
        pool.step(np.zeros(1))
    assert [begins for _, begins in reel.take()] == [True, False, False, False, True]


def test_a_game_of_atari_in_colours_is_the_same_game():
    pytest.importorskip("ale_py")
    reel = Reel()
    env = make("ale:pong").filmed(reel, 0)
    vector = env.open(np.array([[0]]), 3)
    try:
        seen = [vector.reset().observation]
        for action in np.random.default_rng(0).integers(0, 6, 40):
            seen.append(vector.step(np.full((1, 1), action)).observation)
    finally:
        vector.close()
    frames = [frame for frame, _ in reel.take()]
    assert reel.fps == 15
    assert len(frames) == len(seen)
    assert frames[0].shape == (210, 160, 3)
    for frame, observation in zip(frames, seen, strict=True):
        small = np.asarray(Image.fromarray(frame).convert("L").resize((84, 84), Image.Resampling.BOX), int)
        assert np.abs(small - observation[0, 0, -1].astype(int)).mean() < 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "package"),
    [
        ("gymnax:Breakout-MinAtar", "gymnax"),
        ("gymnasium:HalfCheetah-v5", "mujoco"),
        ("gymnasium:CliffWalking-v1", "pygame"),
        ("brax:halfcheetah", "brax"),
        ("jaxmarl:MPE_simple_spread_v3", "jaxmarl"),
        ("jaxmarl:HeuristicEnemySMAX", "jaxmarl"),
        ("pgx:connect_four", "pgx"),
        ("pgx:connect_four?opponent=random", "pgx"),
        ("ale:pong", "ale_py"),
        ("envpool:CartPole-v1", "envpool"),
        ("envpool:HalfCheetah-v4", "envpool"),
        ("pettingzoo:mpe2.simple_spread_v3", "mpe2"),
        ("pettingzoo:classic.tictactoe_v3", "pettingzoo"),
    ],
)
def test_an_episode_of_each_family_is_filmed_without_a_display(env, package, tmp_path):
    pytest.importorskip(package)
    teams = make(env).spec.agents > 0
    run = write_run(tmp_path / "run", (MAPPO if teams else PPO)(widths=(8,)), env)
    variables = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL")}
    command = [sys.executable, "-m", "tessera", "video", run, "-o", tmp_path / "a.gif", "--max-steps", "20"]
    done = subprocess.run(command, env=variables, text=True, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "wrote" in done.stdout.splitlines()[-1]
    with Image.open(tmp_path / "a.gif") as image:
        assert image.n_frames > 1
        frames = {np.asarray(image.convert("RGB")).tobytes() for k in range(image.n_frames) if image.seek(k) is None}
    assert len(frames) > 1


@pytest.mark.parametrize("name", ["pgx:gardner_chess", "pgx:hex", "jaxmarl:switch_riddle", "jaxmarl:coin_game"])
def test_a_first_state_is_drawn(name):
    env = make(name)
    state = jax.device_get(jax.jit(env.reset)(jax.random.key(0))[0])
    pixels = as_pixels(env.artist(100).draw(state), 100)
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 2
