"""`ale:` environments: Atari games with the usual preprocessing, by ALE's own vector environment in C++.

Frames are 84 × 84, grey, four stacked; frame skip 4 with the maximum of the last two; up to 30 no-ops at a
start; rewards clipped to [-1, 1]. Observations are [4, 84, 84], as ALE stacks them: a transpose here costs half a
step, and within the network nothing.
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


def make(
    name: str, num_threads: int = 0, reward_clipping: bool = True, episodic_life: bool = False, **options: Any
) -> AleEnvironment:
    """Make a game by its ROM's name, such as `ms_pacman`; options go to `ale_py.AtariVectorEnv`.

    Returns are sums of clipped rewards; set `reward_clipping` to False for the score of the game. `num_threads` 0 uses
    the cores of this process.
    """
    try:
        from ale_py import roms
        from ale_py.vector_env import AtariVectorEnv
    except ImportError as error:
        raise missing_extra("ale", "ale", error) from error
    games = roms.get_all_rom_ids()
    if name not in games:
        raise unknown_name("Atari game", name, games)
    if not options.get("grayscale", True):
        raise TesseraError("stacked colour frames have four axes, and networks take three: leave grayscale on")
    options |= {"reward_clipping": reward_clipping, "episodic_life": episodic_life}
    return AleEnvironment(name, AtariVectorEnv, num_threads, options)


class AleEnvironment(HostEnvironment):
    """One Atari game; a replica opens one vector environment, which resets in the step that ends an episode."""

    threaded = True
    instead: ClassVar[Mapping[str, str]] = {"repeat": "frameskip", "time_limit": "max_num_frames_per_episode"}

    def __init__(self, name: str, factory: Any, num_threads: int, options: dict[str, Any]) -> None:
        self.name = f"ale:{name}"
        self._game, self._factory, self._threads, self._options = name, factory, num_threads, options
        probe = factory(name, 1, num_threads=1, **options)
        self._spaces = Spaces(self.name, probe.single_observation_space, probe.single_action_space)
        self.spec, self.observation_bounds = self._spaces.spec, self._spaces.bounds()
        probe.close()

    def open(self, ids: np.ndarray, seed: int) -> HostVector:
        """Open one vector environment for the games with indices `ids` [groups, environments per group]."""
        vector = self._factory(
            self._game,
            ids.size,
            num_threads=self._threads or min(ids.size, cores()),
            autoreset_mode=AutoresetMode.SAME_STEP,
            **self._options,
        )
        seeds = np.array([seed_for(seed, index) for index in ids.flat])
        return VectorEnvs([vector], AutoresetMode.SAME_STEP, self._spaces, ids.shape, [seeds])
