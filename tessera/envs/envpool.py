"""`envpool:` environments: a pool of C++ threads that steps many environments at once.

EnvPool resets in the step after the end of an episode (Gymnasium's next-step mode): that step ignores its action and
returns reward 0 and the first observation of the new episode. So it is masked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import AutoresetMode

from tessera.envs.base import HostEnvironment, HostVector, missing_extra
from tessera.envs.spaces import Spaces
from tessera.envs.vectors import VectorEnvs, seed_for
from tessera.errors import TesseraError, unknown_name
from tessera.support.machine import cores


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

        pool = envpool.make(
            self._task,
            env_type="gymnasium",
            num_envs=ids.size,
            # One seed each, because `seed=s` seeds environment i of the pool with s + i, whatever its global index.
            seed=[seed_for(seed, index) for index in ids.flat],
            num_threads=self._threads or min(ids.size, cores()),
            **self._options,
        )
        # Seeded above: a reset of a pool takes no seed.
        return VectorEnvs([pool], AutoresetMode.NEXT_STEP, self._spaces, ids.shape, [None])
