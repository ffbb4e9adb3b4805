"""Open Gymnasium environments, stepped one by one or by vector environments in any autoreset mode.

The EnvPool and ALE adapters, which follow Gymnasium's interface, use `VectorEnvs` too.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from tessera.envs.base import HostVector, Timestep, first_array, map_arrays
from tessera.envs.info import InfoSums, InfoTotals
from tessera.envs.spaces import MASK, Spaces


class _Informing(HostVector):
    """Open environments whose steps have an `info`."""

    def __init__(self) -> None:
        self._info = InfoSums()

    def take_info(self) -> InfoTotals:
        """Name -> [sum, count] of the numbers in `info` since this was last called."""
        return self._info.take()


class SteppedInALoop(_Informing):
    """Environments that are stepped one after the other, so that some can be stepped without the others."""

    _envs: Sequence[Any]

    def step(self, actions: np.ndarray) -> Timestep:
        """Play one step in every environment."""
        return self._play(actions, range(len(self._envs)))

    def step_some(self, actions: np.ndarray, which: np.ndarray) -> Timestep:
        """Play one step in the environments `which`."""
        return self._play(actions, np.flatnonzero(which).tolist())

    def _play(self, actions: np.ndarray, rows: Sequence[int]) -> Timestep:
        """Play one step in the environments `rows`."""
        raise NotImplementedError

    def close(self) -> None:
        """Close every environment."""
        for env in self._envs:
            env.close()
        self._envs = []


class OneByOne(SteppedInALoop):
    """Single environments stepped in a loop, each reset in the step that ends its episode.

    Like SyncVectorEnv in its same-step mode, in three quarters of the time.
    """

    def __init__(self, envs: Sequence[Any], translation: Spaces, shape: Sequence[int], seeds: Sequence[int]) -> None:
        super().__init__()
        self._envs, self._spaces, self._shape = envs, translation, tuple(shape)
        self._seeds: list[Any] = list(seeds)

    def reset(self) -> Timestep:
        """Start every environment: from its seed at first, and from where its generator is later on."""
        begun = [env.reset(seed=seed) for env, seed in zip(self._envs, self._seeds, strict=True)]
        self._seeds = [None] * len(self._seeds)
        observations, infos = zip(*begun, strict=True)
        rows = range(len(self._envs))
        return first_timestep(self._array(observations, rows), legal=self._legal(infos, rows))

    def restart(self, which: np.ndarray) -> Timestep:
        """Start new episodes in the environments `which`."""
        rows = np.flatnonzero(which).tolist()
        observations, infos = zip(*(self._envs[i].reset() for i in rows), strict=True)
        return first_timestep(self._array(observations, rows), legal=self._legal(infos, rows))

    def _play(self, actions: np.ndarray, rows: Sequence[int]) -> Timestep:
        observations: list[Any] = []
        infos: list[Any] = []
        finals: dict[int, Any] = {}
        final_infos: dict[int, Any] = {}
        rewards = np.zeros(len(self._envs), np.float32)
        terminated, truncated = np.zeros((2, len(self._envs)), bool)
        each = self._spaces.decode(actions.reshape(len(self._envs), *actions.shape[2:]))
        # Plain integers, because a NumPy scalar for every environment costs more than a step of many environments.
        choices = each.tolist() if each.ndim == 1 else each
        for i in rows:
            env = self._envs[i]
            observation, rewards[i], terminated[i], truncated[i], info = env.step(choices[i])
            if info:
                self._info.add(info)
            if terminated[i] or truncated[i]:
                # Copies, because an environment may reuse its buffers at a reset.
                finals[i] = copy.deepcopy(observation)
                final_infos[i] = {MASK: copy.copy(info.get(MASK))}
                observation, info = env.reset()
            observations.append(observation)
            infos.append(info)
        observation = final = self._array(observations, rows)
        legal = final_legal = self._legal(infos, rows)
        if finals:
            final = self._array([finals.get(i, seen) for i, seen in zip(rows, observations, strict=True)], rows)
            final_legal = self._legal([final_infos.get(i, info) for i, info in zip(rows, infos, strict=True)], rows)
        return Timestep(
            observation,
            rewards.reshape(self._shape),
            terminated.reshape(self._shape),
            truncated.reshape(self._shape),
            final,
            legal=legal,
            final_legal=final_legal,
        )

    def _array(self, observations: Sequence[Any], rows: Sequence[int]) -> Any:
        """The observations in the environments `rows`; zeros elsewhere."""
        return self._placed(self._spaces.encode(self._spaces.stack(observations)), rows)

    def _legal(self, infos: Sequence[Any], rows: Sequence[int]) -> np.ndarray | None:
        """Which actions are allowed in the environments `rows`; None if all always are."""
        if not self._spaces.spec.restricted:
            return None
        return self._placed(np.stack([self._spaces.mask(info.get(MASK)) for info in infos]), rows)

    def _placed(self, arrays: Any, rows: Sequence[int]) -> Any:
        return grouped(map_arrays(lambda x: spread(x, rows, len(self._envs)), arrays), self._shape)


class VectorEnvs(_Informing):
    """One or several of Gymnasium's vector environments, in any autoreset mode."""

    def __init__(
        self,
        parts: Sequence[Any],
        mode: AutoresetMode,
        translation: Spaces,
        shape: Sequence[int],
        seeds: Sequence[Any],
    ) -> None:
        super().__init__()
        self._parts, self._mode, self._spaces = parts, mode, translation
        self._shape = tuple(shape)
        self._seeds: list[Any] = list(seeds)
        self._size = math.prod(shape) // len(parts)
        self._ended = np.zeros(math.prod(shape), bool)

    def reset(self) -> Timestep:
        """Start every environment: from its seed at first, and from where its generator is later on."""
        self._ended = np.zeros_like(self._ended)
        begun = [part.reset(seed=seed) for part, seed in zip(self._parts, self._seeds, strict=True)]
        self._seeds = [None] * len(self._seeds)
        batches, infos = zip(*begun, strict=True)
        legal = self._legal(infos)
        masked = self._mode is AutoresetMode.NEXT_STEP
        return first_timestep(
            self._grouped(self._encode(batches)), masked, None if legal is None else self._grouped(legal)
        )

    def step(self, actions: np.ndarray) -> Timestep:
        """Play one step in every environment."""
        each = self._spaces.decode(actions.reshape(len(self._parts), -1, *actions.shape[2:]))
        results = [part.step(action) for part, action in zip(self._parts, each, strict=True)]
        batches, *numbers, infos = zip(*results, strict=True)
        observation = final = self._encode(batches)
        legal = final_legal = self._legal(infos)
        # Concatenation copies even a single array, which a vector environment may overwrite.
        rewards, terminated, truncated = (
            np.concatenate(column, dtype=dtype, casting="unsafe")
            for column, dtype in zip(numbers, (np.float32, bool, bool), strict=True)
        )
        valid = None
        if self._mode is AutoresetMode.NEXT_STEP:
            valid = ~self._ended
            rewards[self._ended] = 0.0
            terminated &= valid
            truncated &= valid
        self._ended = terminated | truncated
        for index, info in enumerate(infos):
            self._note_info(index, info, valid)
        if self._ended.any() and self._mode is AutoresetMode.SAME_STEP:
            last = [self._final(i, info) for i, info in enumerate(infos)]
            final, final_legal = self._patched((observation, legal), last)
        elif self._ended.any() and self._mode is AutoresetMode.DISABLED:
            observation, legal = self._patched((final, legal), [self._restarted(i) for i in range(len(self._parts))])
        columns = (observation, rewards, terminated, truncated, final, valid, None, legal, final_legal)
        return Timestep(*(None if column is None else self._grouped(column) for column in columns))

    def _note_info(self, index: int, info: dict[str, Any], valid: np.ndarray | None) -> None:
        """Sum the numbers of one part's step; those of a reset are left out."""
        ended = self._ended_in(index)
        if self._mode is AutoresetMode.SAME_STEP and ended.any():
            self._info.add_batch(info, ~ended)
            self._info.add_batch(info.get("final_info", {}), ended)
        elif info:
            self._info.add_batch(info, None if valid is None else self._part(valid, index))

    def _ended_in(self, index: int) -> np.ndarray:
        return self._part(self._ended, index)

    def _part(self, values: np.ndarray, index: int) -> np.ndarray:
        return values[index * self._size : (index + 1) * self._size]

    def _legal(self, infos: Sequence[dict[str, Any]]) -> np.ndarray | None:
        """Which actions are allowed, [n, k]; None if all always are."""
        if not self._spaces.spec.restricted:
            return None
        return np.concatenate([self._masks(info, np.ones(self._size, bool)) for info in infos])

    def _masks(self, info: dict[str, Any], wanted: np.ndarray) -> np.ndarray:
        """The masks of some environments of one part."""
        masks = info.get(MASK, [None] * self._size)
        if isinstance(masks, tuple):  # of several choices, each with a batch
            masks = np.concatenate(masks, axis=1)
        return np.stack([self._spaces.mask(masks[i]) for i in np.flatnonzero(wanted)])

    def _final(self, index: int, info: dict[str, Any]) -> tuple[Any, Any] | None:
        """The last observations and masks of the episodes that ended in one part, in same-step mode."""
        ended = self._ended_in(index)
        if not ended.any():
            return None
        final = info["final_obs"]
        # Gymnasium gives an object array with one observation for each ended environment, ALE a whole batch.
        alone = isinstance(final, np.ndarray) and final.dtype == object
        batch = self._spaces.stack(final[ended]) if alone else map_arrays(lambda x: x[ended], final)
        legal = self._masks(info["final_info"], ended) if self._spaces.spec.restricted else None
        return self._spaces.encode(batch), legal

    def _restarted(self, index: int) -> tuple[Any, Any] | None:
        """The first observations and masks of new episodes in one part, which start here without autoreset."""
        ended = self._ended_in(index)
        if not ended.any():
            return None
        # The mask is copied because the environment may keep it.
        batch, info = self._parts[index].reset(options={"reset_mask": ended.copy()})
        legal = self._masks(info, ended) if self._spaces.spec.restricted else None
        return map_arrays(lambda x: x[ended], self._spaces.encode(batch)), legal

    def _patched(self, whole: tuple[Any, Any], pieces: Sequence[tuple[Any, Any] | None]) -> tuple[Any, Any]:
        """A copy of observations and masks in which those of ended episodes are replaced."""

        def patch(array: np.ndarray | None, *pieces: np.ndarray) -> np.ndarray | None:
            if array is None:
                return None
            patched = array.copy()
            patched[self._ended] = np.concatenate(pieces)
            return patched

        return map_arrays(patch, whole, *(piece for piece in pieces if piece is not None))

    def _encode(self, batches: Sequence[Any]) -> Any:
        encoded = [self._spaces.encode(batch) for batch in batches]
        return encoded[0] if len(encoded) == 1 else map_arrays(lambda *x: np.concatenate(x), *encoded)

    def _grouped(self, arrays: Any) -> Any:
        return grouped(arrays, self._shape)

    def close(self) -> None:
        """Close every vector environment."""
        for part in self._parts:
            part.close()
        self._parts = []


def grouped(arrays: Any, shape: Sequence[int]) -> Any:
    """Arrays [n, ...], or a tree of them, with n as [groups, environments per group]."""
    return map_arrays(lambda x: x.reshape(*shape, *x.shape[1:]), arrays)


def first_timestep(observation: Any, masked: bool = False, legal: np.ndarray | None = None) -> Timestep:
    """The timestep of a reset: no reward, and nothing has ended."""
    shape = first_array(observation).shape[:2]
    terminated, truncated = np.zeros((2, *shape), bool)
    valid = np.ones(shape, bool) if masked else None
    numbers = (np.zeros(shape, np.float32), terminated, truncated)
    return Timestep(observation, *numbers, observation, valid, legal=legal, final_legal=legal)


def spread(values: np.ndarray, rows: Sequence[int], size: int) -> np.ndarray:
    """The values of some environments, in their order, as rows of an array for all of them."""
    if len(rows) == size:
        return values
    full = np.zeros((size, *values.shape[1:]), values.dtype)
    full[list(rows)] = values
    return full


def seed_for(seed: int, index: int) -> int:
    """The seed of an environment, from the seed of the run and its index; 31 bits, which every simulator accepts."""
    return int(np.random.SeedSequence([seed, int(index)]).generate_state(1)[0]) & 0x7FFFFFFF
