"""`ale:` environments: Atari games with the usual preprocessing, by ALE's own vector environment in C++.

Frames are 84 × 84, grey, four stacked; frame skip 4 with the maximum of the last two; up to 30 no-ops at a
start; rewards clipped to [-1, 1]. Observations are [4, 84, 84], as ALE stacks them: a transpose here costs half a
step, and within the network nothing.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import AutoresetMode

from tessera.envs.base import HostEnvironment, HostVector, missing_extra
from tessera.envs.drawing.reel import Reel
from tessera.envs.spaces import Spaces
from tessera.envs.vectors import VectorEnvs, seed_for
from tessera.errors import TesseraError, unknown_name
from tessera.support.machine import cores

CONSOLE_FPS = 60
"""Frames of a second on the console itself."""


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

    def filmed(self, reel: Reel, height: int) -> HostEnvironment:
        """The same game, with the picture in colours that it has before it is prepared."""
        del height
        reel.fps = CONSOLE_FPS / int(self._options.get("frameskip", 4))
        filmed = copy.copy(self)
        filmed._factory = functools.partial(_filmed, self._factory, reel)
        return filmed


def _filmed(factory: Any, reel: Reel, game: str, count: int, **options: Any) -> InColour:
    """An opened game, and beside it the same one in colours."""
    colours = {"img_height": 210, "img_width": 160, "grayscale": False, "stack_num": 1}
    return InColour(factory(game, count, **options), factory(game, count, **{**options, **colours}), reel)


class InColour:
    """A vector of one game, and another one that is given the same seeds and actions, so that it plays the same."""

    def __init__(self, played: Any, seen: Any, reel: Reel) -> None:
        self._played, self._seen, self._reel = played, seen, reel

    def reset(self, **options: Any) -> Any:
        """Begin a game."""
        self._reel.add(self._seen.reset(**options)[0][0, 0], begins=True)
        return self._played.reset(**options)

    def step(self, actions: np.ndarray) -> Any:
        """Play a step."""
        frames, _, terminated, truncated, info = self._seen.step(actions)
        ended = bool(terminated[0] or truncated[0])
        if ended:
            self._reel.add(info["final_obs"][0, 0])
        self._reel.add(frames[0, 0], begins=ended)
        return self._played.step(actions)

    def close(self) -> None:
        """Close both."""
        self._seen.close()
        self._played.close()
