"""Environments that break on purpose, for processes to import."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from pathlib import Path

import gymnasium
import numpy as np


class Match(gymnasium.Env):
    """Say which sign is shown: a point for each right answer, ten to be had."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.shown = 0, self.np_random.choice(np.float32([-1, 1]), 1)
        return self.shown, {}

    def step(self, action):
        reward = float(action == (self.shown[0] > 0))
        self.time, self.shown = self.time + 1, self.np_random.choice(np.float32([-1, 1]), 1)
        return self.shown, reward, False, self.time == 10, {}


def notes_of(driver: int) -> Path:
    """Where the replicas of a driver note what has happened; the driver makes the folder."""
    return Path(tempfile.gettempdir()) / f"tessera-broken-{driver}"


def once(name: str) -> bool:
    """Whether this is the first time, in any replica of this driver, that `name` comes up; False in the driver."""
    try:
        (notes_of(os.getppid()) / name).touch(exist_ok=False)
    except (FileExistsError, FileNotFoundError):
        return False
    return True


class Crashing(Match):
    """Raises in its fiftieth step, in one process only."""

    played = 0

    def step(self, action):
        type(self).played += 1
        if type(self).played == 50 and once("crash"):
            raise RuntimeError("the simulator is out of order")
        return super().step(action)


class Hanging(Match):
    """Never returns from its fiftieth step, in one process only."""

    played = 0

    def step(self, action):
        type(self).played += 1
        if type(self).played == 50 and once("hang"):
            time.sleep(600)
        return super().step(action)


class Hopeless(Match):
    """Raises in every third step."""

    played = 0

    def step(self, action):
        type(self).played += 1
        if type(self).played % 3 == 0:
            raise RuntimeError("the simulator never works")
        return super().step(action)


class Blocking(Match):
    """Never returns from its first reset, in one process only."""

    def reset(self, *, seed=None, options=None):
        if once("block"):
            time.sleep(600)
        return super().reset(seed=seed, options=options)


class NeverReady(Match):
    """Never returns from a reset, except in the driver, which only looks at its spaces."""

    def reset(self, *, seed=None, options=None):
        if multiprocessing.parent_process() is not None:
            time.sleep(600)
        return super().reset(seed=seed, options=options)


class Noting(Match):
    """Notes each seed that it is reset with, in a process other than the driver."""

    def reset(self, *, seed=None, options=None):
        folder = notes_of(os.getppid())
        if seed is not None and folder.is_dir():
            (folder / f"{seed}-{os.getpid()}").touch()
        return super().reset(seed=seed, options=options)
