"""How environments look: shapes as pixels and SVG, and the looks of gymnax's environments."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from types import SimpleNamespace

import gymnasium
import jax
import numpy as np
import pytest

from tessera.envs import make
from tessera.envs.drawing.gymnax import LOOKS, cart_pole
from tessera.envs.drawing.pixels import as_pixels
from tessera.envs.drawing.reel import Reel, recorded
from tessera.envs.drawing.shapes import BLUE, ORANGE, Circle, Label, Picture, Polygon, Rectangle, Stroke, cells
from tessera.envs.drawing.svg import animated
from tessera.errors import TesseraError

EACH = (
    Rectangle(0, 0, 10, 10, ORANGE),
    Circle(30, 10, 8, BLUE, "#000000", 2),
    Polygon(((50, 0), (60, 0), (60, 20)), "#00ff00"),
    Stroke(((0, 30), (60, 30)), "#ff0000", 4),
    Label(70, 10, "<K>", 10),
)


def colour(text: str) -> list[int]:
    return [int(text[k : k + 2], 16) for k in (1, 3, 5)]


def test_each_shape_is_seen_where_it_is():
    pixels = as_pixels(Picture(80, 40, EACH), 80)
    assert pixels.shape == (80, 160, 3)
    assert pixels[8, 8].tolist() == colour(ORANGE)
    assert pixels[20, 60].tolist() == colour(BLUE)
    assert pixels[20, 60 - 15].tolist() == [0, 0, 0]
    assert pixels[6, 116].tolist() == [0, 255, 0]
    assert pixels[60, 40].tolist() == [255, 0, 0]
    assert pixels[30, 20].tolist() == [255, 255, 255]
    assert (pixels[8:32, 125:155] < 128).any()


def test_what_is_half_clear_lets_through_what_is_behind():
    picture = Picture(10, 10, (Rectangle(0, 0, 10, 10, "#000000"), Rectangle(0, 0, 10, 10, "#ffffff80")))
    assert as_pixels(picture, 10)[5, 5].tolist() == pytest.approx([128] * 3, abs=2)


@pytest.mark.parametrize(("size", "height", "scaled"), [((21, 33), None, (22, 34)), ((20, 30), 50, (50, 76))])
def test_pixels_have_even_sides_whatever_they_were(size, height, scaled):
    assert as_pixels(np.zeros((*size, 3), np.uint8), height).shape[:2] == scaled


def test_pixels_of_the_right_size_stay_as_they_are():
    frame = np.zeros((20, 30, 3), np.uint8)
    assert as_pixels(frame) is frame


def test_a_picture_is_svg_with_every_shape_and_words_are_no_tags():
    root = ET.fromstring(animated([Picture(80, 40, EACH)], 10, 400))
    assert root.attrib["viewBox"] == "0 0 80 40"
    assert root.attrib["width"] == "800"
    kinds = [element.tag.partition("}")[2] for element in root.iter()]
    assert sorted(kinds) == ["circle", "g", "polygon", "polyline", "rect", "rect", "svg", "text"]
    assert next(e for e in root.iter() if e.tag.endswith("text")).text == "<K>"


def test_an_animation_writes_what_never_changes_and_what_stands_still_once():
    back, one, two = Rectangle(0, 0, 9, 9, BLUE), Circle(1, 1, 1, ORANGE), Circle(2, 2, 1, ORANGE)
    text = animated([Picture(9, 9, shapes) for shapes in ((back, one), (back, one), (back, two), (back, one))], 2)
    assert text.count(BLUE) == 1
    assert text.count("<g") == 3
    assert 'keyTimes="0;0.5;0.75" values="hidden;visible;hidden"' in text
    assert 'dur="2s"' in text


def test_too_long_an_animation_is_refused():
    pictures = [cells([(np.ones((50, 50)), BLUE if k % 2 else ORANGE)]) for k in range(90)]
    with pytest.raises(TesseraError, match="too large for svg"):
        animated(pictures, 10)


def test_a_pole_that_falls_to_the_right_is_drawn_so():
    state = SimpleNamespace(x=0.5, theta=0.2)
    picture = cart_pole(None, SimpleNamespace(x_threshold=2.4, length=0.5), state)
    (start, end), cart = picture.shapes[2].points, picture.shapes[1]
    assert start[0] > picture.width / 2
    assert cart.x < start[0] < cart.x + cart.width
    assert end[0] > start[0]
    assert end[1] < start[1]


@pytest.mark.parametrize("name", LOOKS)
def test_every_look_draws_a_first_state(name):
    env = make(f"gymnax:{name}")
    state = jax.device_get(jax.jit(env.reset)(jax.random.key(0))[0])
    pixels = as_pixels(env.artist(100).draw(state), 100)
    assert pixels.shape[0] == 100
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 1


def test_what_has_nothing_to_see_is_refused():
    with pytest.raises(TesseraError, match="gymnax:SimpleBandit-bsuite cannot be drawn: there is nothing to see in it"):
        make("gymnax:SimpleBandit-bsuite").artist(100)


def test_wrappers_are_drawn_as_what_is_inside():
    env = make("gymnax:Breakout-MinAtar?stack=2&sticky=0.1")
    state = jax.device_get(jax.jit(env.reset)(jax.random.key(0))[0])
    assert len(env.artist(100).draw(state).shapes) > 30


class Drawn(gymnasium.Env):
    """Gives what it was told to."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, picture):
        self.picture = picture

    def reset(self, seed=None, options=None):
        return self.observation_space.sample(), {}

    def render(self):
        if isinstance(self.picture, Exception):
            raise self.picture
        return self.picture


@pytest.mark.parametrize(
    ("picture", "said"),
    [
        (None, "mine cannot be drawn: render.. gives NoneType"),
        (np.zeros((4, 4)), "and a video needs pixels"),
        (RuntimeError("no display\nat all"), "it raised RuntimeError .no display."),
    ],
)
def test_what_gives_no_pixels_is_refused_before_it_is_played(picture, said):
    with pytest.raises(TesseraError, match=said):
        recorded("mine", lambda: Drawn(picture), Reel())


def test_a_class_that_takes_no_render_mode_is_drawn_if_it_can_be():
    reel = Reel()
    make_one = recorded("mine", lambda: Drawn(np.ones((4, 4, 3), np.uint8)), reel)
    env = make_one()
    env.reset()
    (frame, begins), *more = reel.take()
    assert begins
    assert frame.shape == (4, 4, 3)
    assert not more
    assert reel.take() == []
