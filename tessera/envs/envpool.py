"""`envpool:` environments: a pool of C++ threads that steps many environments at once.

EnvPool resets in the step after the end of an episode (Gymnasium's next-step mode): that step ignores its action and
returns reward 0 and the first observation of the new episode. So it is masked.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import AutoresetMode

from tessera.envs.base import HostEnvironment, HostVector, missing_extra
from tessera.envs.drawing.reel import FPS, Reel, is_pixels
from tessera.envs.spaces import Spaces
from tessera.envs.vectors import VectorEnvs, seed_for
from tessera.errors import RAISED_BY_USERS, TesseraError, unknown_name
from tessera.support.headless import draws_bodies
from tessera.support.machine import cores

BODIES = "envpool.mujoco."
"""Beginning of the modules of tasks that MuJoCo draws."""


def make(name: str, num_threads: int = 0, **options: Any) -> EnvPoolEnvironment:
    """Make an EnvPool task; options go to `envpool.make`. `num_threads` 0 uses the cores of this process."""
    try:
        import envpool
    except ImportError as error:
        raise missing_extra("envpool", "envpool", error) from error
    known = envpool.list_all_envs()
    if name not in known:
        raise unknown_name("EnvPool environment", name, known)
    return EnvPoolEnvironment(name, num_threads, options)


class EnvPoolEnvironment(HostEnvironment):
    """A kind of EnvPool environment; every replica opens one pool."""

    masks = True
    threaded = True
    instead: ClassVar[Mapping[str, str]] = {"repeat": "frame_skip", "time_limit": "max_episode_steps"}
    _reel: Reel | None = None
    """Where the frames go, if this is filmed."""

    def __init__(self, name: str, num_threads: int, options: dict[str, Any]) -> None:
        import envpool

        self.name = f"envpool:{name}"
        self._task, self._threads, self._options = name, num_threads, options
        spec = envpool.make_spec(name, **options)
        if spec.config.max_num_players > 1:
            raise TesseraError(f"{self.name} is for several players, and this adapter is for one: choose another")
        self._spaces = Spaces(self.name, spec.gymnasium_observation_space, spec.gymnasium_action_space)
        self.spec, self.observation_bounds = self._spaces.spec, self._spaces.bounds()

    def open(self, ids: np.ndarray, seed: int) -> HostVector:
        """Open one pool with the environments of global indices `ids` [groups, environments per group]."""
        import envpool

        pool: Any = envpool.make(
            self._task,
            env_type="gymnasium",
            num_envs=ids.size,
            # One seed each, because `seed=s` seeds environment i of the pool with s + i, whatever its global index.
            seed=[seed_for(seed, index) for index in ids.flat],
            num_threads=self._threads or min(ids.size, cores()),
            **self._options,
        )
        pool = pool if self._reel is None else RecordedPool(pool, self._reel)
        # Seeded above: a reset of a pool takes no seed.
        return VectorEnvs([pool], AutoresetMode.NEXT_STEP, self._spaces, ids.shape, [None])

    def filmed(self, reel: Reel, height: int) -> HostEnvironment:
        """The same, with what EnvPool renders."""
        import envpool

        del height
        module = envpool.registration.registry.specs[self._task][0]
        if module.startswith(BODIES) and not draws_bodies():
            # its own attempt would end this process
            raise TesseraError(f"{self.name} cannot be drawn: MuJoCo needs a display, or EGL or OSMesa: install one")
        filmed = copy.copy(self)
        filmed._reel, filmed._options = reel, {**self._options, "render_mode": "rgb_array"}
        try:
            probe: Any = envpool.make(self._task, env_type="gymnasium", num_envs=1, **filmed._options)
            probe.reset()
            frames = probe.render()
            reel.fps = 60 / int(probe.config["frame_skip"]) if module == "envpool.atari" else FPS
            probe.close()
        except RAISED_BY_USERS as error:
            first = str(error).strip().partition("\n")[0]
            raise TesseraError(
                f"{self.name} cannot be drawn: EnvPool raised {type(error).__name__} ({first})"
            ) from error
        if frames is None or not is_pixels(np.asarray(frames)[0]):
            raise TesseraError(f"{self.name} cannot be drawn: EnvPool renders no pixels of it")
        return filmed


class RecordedPool:
    """A pool of one environment whose frames go to a reel."""

    def __init__(self, pool: Any, reel: Reel) -> None:
        self._pool, self._reel, self._ended = pool, reel, False

    def reset(self, **options: Any) -> Any:
        """Begin an episode."""
        begun = self._pool.reset(**options)
        self._reel.add(self._pool.render()[0], begins=True)
        return begun

    def step(self, actions: np.ndarray) -> Any:
        """Play a step, or begin the next episode in the step after the end of one."""
        stepped = self._pool.step(actions)
        self._reel.add(self._pool.render()[0], begins=self._ended)
        self._ended = bool(stepped[2][0] or stepped[3][0])
        return stepped

    def close(self) -> None:
        """Close the pool."""
        self._pool.close()
