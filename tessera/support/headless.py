"""Drawing without a display: what libraries read from the environment variables before they are imported."""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import os

LIBRARIES = ("EGL", "OSMesa")
"""What MuJoCo draws into memory with, the first that is there."""


def draw_without_display() -> None:
    """Let pygame and MuJoCo draw into memory, unless the user has chosen how they draw.

    Call it before they are imported. What draws in windows of its own still needs a display.
    """
    for name, value in headless_variables().items():
        os.environ.setdefault(name, value)
    if has_display():
        return
    for name in ("EGL", "OpenGL"):  # EnvPool's MuJoCo finds them among those that are loaded for all
        if library := ctypes.util.find_library(name):
            with contextlib.suppress(OSError):
                ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)


def headless_variables() -> dict[str, str]:
    """The environment variables of a process that draws, where they are not set."""
    variables = {"SDL_AUDIODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "hide"}
    if not has_display():
        variables["SDL_VIDEODRIVER"] = "dummy"
        if library := next(filter(ctypes.util.find_library, LIBRARIES), None):
            variables |= {"MUJOCO_GL": library.lower(), "PYOPENGL_PLATFORM": library.lower()}
    return {name: value for name, value in variables.items() if name not in os.environ}


def has_display() -> bool:
    """Whether windows can be opened."""
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def draws_bodies() -> bool:
    """Whether there is a display, or what draws MuJoCo's bodies without one."""
    return has_display() or any(map(ctypes.util.find_library, LIBRARIES))
