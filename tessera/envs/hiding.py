"""Environments that hide entries of their observations, so that good actions need memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.envs.base import DeviceEnvironment, Environment, HostEnvironment, HostVector, Timestep
from tessera.errors import TesseraError


def hide(env: Environment, entries: Sequence[int]) -> Environment:
    """The environment without the entries `entries` of its flat observation."""
    shape = env.spec.observation_shape
    if len(shape) != 1 or env.spec.agents:
        raise TesseraError(f"hide is for flat observations of one agent, and those of {env.name} are {shape}")
    wrong = [entry for entry in entries if not 0 <= entry < shape[0]]
    kept = np.setdiff1d(np.arange(shape[0]), entries)
    if wrong or not len(kept):
        raise TesseraError(
            f"hide={','.join(map(str, entries))}: {env.name} observes entries 0 to {shape[0] - 1}; name some, not all"
        )
    return HidingHost(env, kept) if isinstance(env, HostEnvironment) else HidingDevice(env, kept)


class HidingDevice(DeviceEnvironment):
    """A device environment that shows the entries `kept`."""

    def __init__(self, env: DeviceEnvironment, kept: np.ndarray) -> None:
        self._env, self._kept = env, kept
        self.name = env.name
        self.spec = dataclasses.replace(env.spec, observation_shape=(len(kept),))

    def reset(self, key: Any) -> tuple[Any, Any]:
        """Start an episode: (state, observation)."""
        state, observation = self._env.reset(key)
        return state, observation[self._kept]

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Play one step: (state, observation, reward, terminated, truncated)."""
        state, observation, *rest = self._env.step(state, action, key)
        reward, terminated, truncated = rest
        return state, observation[self._kept], reward, terminated, truncated

    def restart(self, state: Any, key: Any) -> tuple[Any, Any]:
        """Start the next episode after `state`."""
        state, observation = self._env.restart(state, key)
        return state, observation[self._kept]


class HidingHost(HostEnvironment):
    """A host environment that shows the entries `kept`."""

    def __init__(self, env: HostEnvironment, kept: np.ndarray) -> None:
        self._env, self._kept = env, kept
        self.name, self.masks, self.threaded = env.name, env.masks, env.threaded
        self.spec = dataclasses.replace(env.spec, observation_shape=(len(kept),))

    def open(self, ids: np.ndarray, seed: int) -> HostVector:
        """Open the environments with global indices `ids` [groups, environments per group]."""
        return _HidingVector(self._env.open(ids, seed), self._kept)


class _HidingVector(HostVector):
    def __init__(self, vector: HostVector, kept: np.ndarray) -> None:
        self._vector, self._kept = vector, kept

    def reset(self) -> Timestep:
        return self._shown(self._vector.reset())

    def step(self, actions: np.ndarray) -> Timestep:
        return self._shown(self._vector.step(actions))

    def _shown(self, timestep: Timestep) -> Timestep:
        shown = np.ascontiguousarray(timestep.observation[..., self._kept])
        final = shown if timestep.final is timestep.observation else timestep.final[..., self._kept]
        return timestep._replace(observation=shown, final=final)

    def close(self) -> None:
        self._vector.close()
