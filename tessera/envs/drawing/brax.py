"""How Brax's environments look: MuJoCo draws them, from the positions that Brax has computed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tessera.envs.drawing.shapes import Artist
from tessera.errors import RAISED_BY_USERS, TesseraError

ASPECT = 4 / 3
"""Width of a picture by its height."""


def artist_of(name: str, env: Any, height: int) -> Artist:
    """What draws the states of one of Brax's environments; refuse one without bodies."""
    system = getattr(env, "sys", None)
    if system is None:
        raise TesseraError(f"{name} cannot be drawn: it has no bodies")
    try:
        import mujoco

        model = system.mj_model
        width = 2 * math.ceil(height * ASPECT / 2)
        model.vis.global_.offwidth = max(width, model.vis.global_.offwidth)
        model.vis.global_.offheight = max(height, model.vis.global_.offheight)
        renderer, data = mujoco.Renderer(model, height, width), mujoco.MjData(model)
    except RAISED_BY_USERS as error:  # what OpenGL raises depends on what is missing
        raise TesseraError(
            f"{name} cannot be drawn: MuJoCo found no way to draw ({error}): install EGL or OSMesa, and set "
            "MUJOCO_GL to egl or osmesa before it is imported"
        ) from error
    camera = 0 if model.ncam else -1  # one that follows the body, if there is one

    def draw(state: Any) -> np.ndarray:
        pipeline = state.inner.pipeline_state
        data.qpos, data.qvel = pipeline.q, pipeline.qd
        mujoco.mj_forward(model, data)
        renderer.update_scene(data, camera=camera)
        return renderer.render()

    return Artist(draw, 1 / float(env.dt))
