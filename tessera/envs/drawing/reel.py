"""Frames of host environments, taken as they are played."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tessera.errors import RAISED_BY_USERS, TesseraError

FPS = 30.0
"""Frames of a second, where an environment does not say."""


class Reel:
    """Frames in the order in which they were drawn, each with whether an episode begins with it."""

    def __init__(self) -> None:
        self.fps = FPS
        self._frames: list[tuple[np.ndarray, bool]] = []

    def add(self, frame: Any, begins: bool = False) -> None:
        """Add a frame."""
        self._frames.append((np.ascontiguousarray(frame), begins))

    def take(self) -> list[tuple[np.ndarray, bool]]:
        """The frames since the last call."""
        taken, self._frames = self._frames, []
        return taken


class Recorded:
    """A single environment whose frames go to a reel; the rest is its own."""

    def __init__(self, env: Any, reel: Reel) -> None:
        self._env, self._reel = env, reel

    def reset(self, **options: Any) -> Any:
        """Begin an episode."""
        begun = self._env.reset(**options)
        self._reel.add(self._env.render(), begins=True)
        return begun

    def step(self, action: Any) -> Any:
        """Play a step."""
        stepped = self._env.step(action)
        self._reel.add(self._env.render())
        return stepped

    def __getattr__(self, name: str) -> Any:
        """Anything else of the environment."""
        if name.startswith("__") or name == "_env":  # asked for while a copy is made
            raise AttributeError(name)
        return getattr(self._env, name)


def recorded(name: str, factory: Callable[..., Any], reel: Reel) -> Callable[[], Recorded]:
    """A factory of environments whose frames go to a reel; refuse one that draws no pixels."""
    drawing = _with_pixels(factory)
    try:
        probe = drawing()
        try:
            probe.reset(seed=0)
            frame = probe.render()
            metadata = getattr(probe, "metadata", {})
        finally:
            probe.close()
    except TesseraError:
        raise
    except RAISED_BY_USERS as error:
        first = str(error).strip().partition("\n")[0]
        raise TesseraError(f"{name} cannot be drawn: it raised {type(error).__name__} ({first})") from error
    if not is_pixels(frame):
        raise TesseraError(
            f"{name} cannot be drawn: render() gives {type(frame).__name__}, and a video needs pixels: let its class "
            'take render_mode="rgb_array" and give an array uint8 [height, width, 3]'
        )
    with contextlib.suppress(TypeError, ValueError):
        reel.fps = float(metadata.get("render_fps") or FPS)
    return lambda: Recorded(drawing(), reel)


def is_pixels(frame: Any) -> bool:
    """Whether this is an array of coloured pixels."""
    return isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3


def _with_pixels(factory: Callable[..., Any]) -> Callable[[], Any]:
    """The factory with pixels asked for, if it can be asked."""

    def make() -> Any:
        try:
            return factory(render_mode="rgb_array")
        except TypeError as error:
            if "render_mode" not in str(error):
                raise
            return factory()

    return make
