"""Drawing without a display: what libraries read from the environment variables before they are imported."""

from __future__ import annotations

import ctypes.util
import os


def draw_without_display() -> None:
    """Let pygame and MuJoCo draw into memory, unless the user has chosen how they draw.

    Call it before they are imported. What draws in windows of its own still needs a display.
    """
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "hide")
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    if library := next((name for name in ("EGL", "OSMesa") if ctypes.util.find_library(name)), None):
        os.environ.setdefault("MUJOCO_GL", library.lower())
        os.environ.setdefault("PYOPENGL_PLATFORM", library.lower())
