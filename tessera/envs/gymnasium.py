"""Gymnasium environments: registered ids, classes and factories, stepped one by one or by their own vector version.

The EnvPool and ALE adapters, which follow Gymnasium's interface, use `Spaces` and `VectorEnvs` too.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

from tessera.envs.base import (
    Actions,
    Box,
    Discrete,
    HostEnvironment,
    HostVector,
    MultiDiscrete,
    Spec,
    Timestep,
)
from tessera.errors import TesseraError, unknown_name

AUTORESETS = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}


def make(name: str, autoreset: str | None = None, **options: Any) -> GymnasiumEnvironment:
    """Make a registered environment; `module:Id-v0` imports the module that registers it first.

    Its own vector version is used if it has one and that supports the mode `autoreset`.
    """
    module, colon, identifier = name.rpartition(":")
    try:
        if colon:
            importlib.import_module(module)
        spec = gymnasium.spec(identifier)
    except ModuleNotFoundError as error:
        raise TesseraError(f"{module} of '{name}' cannot be imported ({error}): is it installed?") from error
    except gymnasium.error.Error:
        raise unknown_name("Gymnasium environment", identifier, gymnasium.registry) from None
    factory = functools.partial(gymnasium.make, identifier, disable_env_checker=True, **options)
    vectorised = functools.partial(gymnasium.make_vec, identifier, vectorization_mode="vector_entry_point", **options)
    if spec.vector_entry_point is not None:
        native = _probe(identifier, functools.partial(vectorised, num_envs=1))
        mode = native.metadata.get("autoreset_mode")
        if isinstance(mode, AutoresetMode) and (autoreset is None or mode is _mode(autoreset)):
            return GymnasiumEnvironment(f"gymnasium:{name}", native, factory, mode, vectorised)
    return wrap(factory, _probe(identifier, factory), f"gymnasium:{name}", autoreset, {})


def wrap(
    factory: Callable[..., Any], probe: Any, name: str, autoreset: str | None, options: dict[str, Any]
) -> GymnasiumEnvironment:
    """Adapt a factory of single environments; `probe`, the first of them, only shows the spaces."""
    if not isinstance(probe, gymnasium.Env):
        raise TesseraError(
            f"{name} gives {type(probe).__name__}, which is no environment: it must be a DeviceEnvironment, a "
            "HostEnvironment or a gymnasium.Env"
        )
    probe.close()
    return GymnasiumEnvironment(name, probe, functools.partial(factory, **options), _mode(autoreset))


def _mode(autoreset: str | None) -> AutoresetMode:
    if autoreset is not None and autoreset not in AUTORESETS:
        raise unknown_name("autoreset mode", autoreset, AUTORESETS)
    return AUTORESETS[autoreset or "same_step"]


def _probe(name: str, build: Callable[[], Any]) -> Any:
    """Build an environment and close it; its spaces and metadata stay readable."""
    try:
        env = build()
    except gymnasium.error.DependencyNotInstalled as error:
        raise TesseraError(f"{name} needs a package that is not installed: {error}") from error
    except gymnasium.error.Error as error:
        raise TesseraError(f"{name} cannot be made with these options: {error}") from error
    env.close()
    return env


def _space(name: str, probe: Any, attribute: str) -> spaces.Space:
    """A space of an environment; refuse one that is missing."""
    space = getattr(probe, attribute, None)
    if not isinstance(space, spaces.Space):
        what = "is missing" if space is None else f"is a {type(space).__name__}"
        raise TesseraError(
            f"{attribute} of {name} {what}, and networks are made for it: set it to a space of gymnasium.spaces"
        )
    return space


def _wrapped(factory: Callable[[], Any], wrappers: Sequence[Callable[[Any], Any]]) -> Any:
    return functools.reduce(lambda env, wrapper: wrapper(env), wrappers, factory())


class GymnasiumEnvironment(HostEnvironment):
    """A kind of Gymnasium environment, stepped in this process."""

    def __init__(
        self,
        name: str,
        probe: Any,
        factory: Callable[[], gymnasium.Env],
        mode: AutoresetMode,
        vectorised: Callable[..., VectorEnv] | None = None,
    ) -> None:
        self.name = name
        single = vectorised is not None
        self._spaces = Spaces(
            name,
            _space(name, probe, "single_observation_space" if single else "observation_space"),
            _space(name, probe, "single_action_space" if single else "action_space"),
        )
        limit = getattr(getattr(probe, "spec", None), "max_episode_steps", None) or 0
        self.spec = dataclasses.replace(self._spaces.spec, time_limit=limit)
        self.observation_bounds = self._spaces.bounds()
        self.masks = mode is AutoresetMode.NEXT_STEP
        self._factory, self._mode, self._vectorised = factory, mode, vectorised

    def open(self, ids: np.ndarray, seed: int) -> HostVector:
        """Open the environments with global indices `ids` [groups, environments per group]."""
        if self._vectorised is not None:
            # A vector environment has one random generator, so each group gets its own, seeded by its first index.
            groups = [self._vectorised(num_envs=ids.shape[1]) for _ in ids]
            seeds = [seed_for(seed, group[0]) for group in ids]
            return VectorEnvs(groups, self._mode, self._spaces, ids.shape, seeds)
        seeds = [seed_for(seed, index) for index in ids.flat]
        factories = [self._factory] * ids.size
        if self._mode is AutoresetMode.SAME_STEP:
            return OneByOne([factory() for factory in factories], self._spaces, ids.shape, seeds)
        vector = SyncVectorEnv(factories, autoreset_mode=self._mode)
        return VectorEnvs([vector], self._mode, self._spaces, ids.shape, [seeds])

    def one_by_one(self) -> HostEnvironment:
        """The same without a vector version."""
        alone = copy.copy(self)
        alone._mode, alone._vectorised, alone.masks = AutoresetMode.SAME_STEP, None, False
        return alone

    def single(self) -> Any:
        """One environment as Gymnasium makes it."""
        return self._factory()

    def wrapped_in(self, wrappers: Sequence[Callable[[Any], Any]]) -> GymnasiumEnvironment:
        """The same with wrappers around each single environment, the first one innermost."""
        factory = functools.partial(_wrapped, self._factory, tuple(wrappers))
        probe = _probe(self.name, factory)
        mode = AutoresetMode.SAME_STEP if self._vectorised is not None else self._mode
        wrapped = GymnasiumEnvironment(self.name, probe, factory, mode)
        wrapped.spec = dataclasses.replace(wrapped.spec, precision=self.spec.precision)
        return wrapped


class OneByOne(HostVector):
    """Single environments stepped in a loop, each reset in the step that ends its episode.

    Like SyncVectorEnv in its same-step mode, in three quarters of the time.
    """

    def __init__(self, envs: Sequence[Any], translation: Spaces, shape: Sequence[int], seeds: Sequence[int]) -> None:
        self._envs, self._spaces, self._shape = envs, translation, tuple(shape)
        self._seeds: list[Any] = list(seeds)

    def reset(self) -> Timestep:
        """Start every environment: from its seed at first, and from where its generator is later on."""
        observations = [env.reset(seed=seed)[0] for env, seed in zip(self._envs, self._seeds, strict=True)]
        self._seeds = [None] * len(self._seeds)
        return first_timestep(self._array(observations))

    def step(self, actions: np.ndarray) -> Timestep:
        """Play one step in every environment."""
        return self._play(actions, range(len(self._envs)))

    def step_some(self, actions: np.ndarray, which: np.ndarray) -> Timestep:
        """Play one step in the environments `which`."""
        return self._play(actions, np.flatnonzero(which).tolist())

    def restart(self, which: np.ndarray) -> Timestep:
        """Start new episodes in the environments `which`."""
        rows = np.flatnonzero(which).tolist()
        return first_timestep(self._array([self._envs[i].reset()[0] for i in rows], rows))

    def _play(self, actions: np.ndarray, rows: Sequence[int]) -> Timestep:
        observations: list[Any] = []
        finals: dict[int, Any] = {}
        rewards = np.zeros(len(self._envs), np.float32)
        terminated, truncated = np.zeros((2, len(self._envs)), bool)
        each = self._spaces.decode(actions.reshape(len(self._envs), *actions.shape[2:]))
        # Plain integers, because a NumPy scalar for every environment costs more than a step of many environments.
        choices = each.tolist() if each.ndim == 1 else each
        for i in rows:
            env = self._envs[i]
            observation, rewards[i], terminated[i], truncated[i], _ = env.step(choices[i])
            if terminated[i] or truncated[i]:
                # A copy, because an environment may reuse its buffer at a reset.
                finals[i] = copy.deepcopy(observation)
                observation = env.reset()[0]
            observations.append(observation)
        observation = final = self._array(observations, rows)
        if finals:
            final = self._array([finals.get(i, seen) for i, seen in zip(rows, observations, strict=True)], rows)
        return Timestep(
            observation,
            rewards.reshape(self._shape),
            terminated.reshape(self._shape),
            truncated.reshape(self._shape),
            final,
        )

    def _array(self, observations: Sequence[Any], rows: Sequence[int] = ()) -> np.ndarray:
        """One array of the observations in the environments `rows`, or in all; zeros elsewhere."""
        encoded = self._spaces.encode(self._spaces.stack(observations))
        if len(encoded) < len(self._envs):
            encoded = spread(encoded, rows, len(self._envs))
        return encoded.reshape(*self._shape, *encoded.shape[1:])

    def close(self) -> None:
        """Close every environment."""
        for env in self._envs:
            env.close()
        self._envs = []


class VectorEnvs(HostVector):
    """One or several of Gymnasium's vector environments, in any autoreset mode."""

    def __init__(
        self,
        parts: Sequence[Any],
        mode: AutoresetMode,
        translation: Spaces,
        shape: Sequence[int],
        seeds: Sequence[Any],
    ) -> None:
        self._parts, self._mode, self._spaces = parts, mode, translation
        self._shape = tuple(shape)
        self._seeds: list[Any] = list(seeds)
        self._size = math.prod(shape) // len(parts)
        self._ended = np.zeros(math.prod(shape), bool)

    def reset(self) -> Timestep:
        """Start every environment: from its seed at first, and from where its generator is later on."""
        self._ended = np.zeros_like(self._ended)
        batches = [part.reset(seed=seed)[0] for part, seed in zip(self._parts, self._seeds, strict=True)]
        self._seeds = [None] * len(self._seeds)
        return first_timestep(self._grouped(self._encode(batches)), self._mode is AutoresetMode.NEXT_STEP)

    def step(self, actions: np.ndarray) -> Timestep:
        """Play one step in every environment."""
        each = self._spaces.decode(actions.reshape(len(self._parts), -1, *actions.shape[2:]))
        results = [part.step(action) for part, action in zip(self._parts, each, strict=True)]
        batches, *numbers, infos = zip(*results, strict=True)
        observation = final = self._encode(batches)
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
        if self._ended.any() and self._mode is AutoresetMode.SAME_STEP:
            final = self._patched(observation, [self._final(i, info) for i, info in enumerate(infos)])
        elif self._ended.any() and self._mode is AutoresetMode.DISABLED:
            observation = self._patched(final, [self._restarted(i) for i in range(len(self._parts))])
        columns = (observation, rewards, terminated, truncated, final, valid)
        return Timestep(*(None if column is None else self._grouped(column) for column in columns))

    def _ended_in(self, index: int) -> np.ndarray:
        return self._ended[index * self._size : (index + 1) * self._size]

    def _final(self, index: int, info: dict[str, Any]) -> np.ndarray | None:
        """The last observations of the episodes that ended in one part, in same-step mode."""
        ended = self._ended_in(index)
        if not ended.any():
            return None
        final = info["final_obs"]
        # Gymnasium gives an object array with one observation for each ended environment, ALE a whole batch.
        return self._spaces.encode(self._spaces.stack(final[ended]) if final.dtype == object else final[ended])

    def _restarted(self, index: int) -> np.ndarray | None:
        """The first observations of new episodes in one part, which start here where autoreset is disabled."""
        ended = self._ended_in(index)
        if not ended.any():
            return None
        # The mask is copied because the environment may keep it.
        batch, _ = self._parts[index].reset(options={"reset_mask": ended.copy()})
        return self._spaces.encode(batch)[ended]

    def _patched(self, observations: np.ndarray, pieces: Sequence[np.ndarray | None]) -> np.ndarray:
        """A copy of `observations` in which those of ended episodes are replaced."""
        patched = observations.copy()
        patched[self._ended] = np.concatenate([piece for piece in pieces if piece is not None])
        return patched

    def _encode(self, batches: Sequence[Any]) -> np.ndarray:
        encoded = [self._spaces.encode(batch) for batch in batches]
        return encoded[0] if len(encoded) == 1 else np.concatenate(encoded)

    def _grouped(self, array: np.ndarray) -> np.ndarray:
        return array.reshape(*self._shape, *array.shape[1:])

    def close(self) -> None:
        """Close every vector environment."""
        for part in self._parts:
            part.close()
        self._parts = []


class Spaces:
    """Translates between Gymnasium's spaces and the arrays of Tessera's networks."""

    def __init__(self, name: str, observations: spaces.Space, actions: spaces.Space) -> None:
        self._observations, self._actions = observations, actions
        self.spec = Spec(*_observation_spec(name, observations), _actions(name, actions))

    def bounds(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Lower and upper bounds of encoded observations."""
        space, shape = self._observations, self.spec.observation_shape
        flat = space if isinstance(space, spaces.Box) else spaces.flatten_space(space)
        if not isinstance(flat, spaces.Box) or flat.low.size != math.prod(shape):
            return None
        low, high = (np.asarray(bound, np.float32).reshape(shape) for bound in (flat.low, flat.high))
        return low, high

    def stack(self, observations: Sequence[Any]) -> Any:
        """Make a batch of single observations, in the form of vector environments."""
        empty = create_empty_array(self._observations, n=len(observations))
        return concatenate(self._observations, observations, empty)

    def encode(self, batch: Any) -> np.ndarray:
        """Translate a batch of observations to a fresh, C-contiguous array [n, *observation_shape]."""
        if isinstance(self._observations, spaces.Dict | spaces.Tuple):
            return _flat(self._observations, batch)
        if isinstance(self._observations, spaces.Discrete):
            return _one_hot(batch, int(self._observations.start), int(self._observations.n))
        encoded = np.array(batch, self.spec.observation_dtype, order="C")
        return encoded.reshape(-1, *self.spec.observation_shape)

    def decode(self, actions: np.ndarray) -> np.ndarray:
        """Translate actions [..., *action shape] to the environment's own."""
        space = self._actions
        if isinstance(space, spaces.Discrete):
            return np.asarray(actions, space.dtype) + space.start
        shape = tuple(space.shape or ())
        axes = 1 if isinstance(self.spec.actions, MultiDiscrete) else len(shape)
        actions = np.asarray(actions, space.dtype).reshape(*actions.shape[: actions.ndim - axes], *shape)
        return actions + space.start if isinstance(space, spaces.MultiDiscrete) else actions


def first_timestep(observation: np.ndarray, masked: bool = False) -> Timestep:
    """The timestep of a reset: no reward, and nothing has ended."""
    shape = observation.shape[:2]
    terminated, truncated = np.zeros((2, *shape), bool)
    valid = np.ones(shape, bool) if masked else None
    return Timestep(observation, np.zeros(shape, np.float32), terminated, truncated, observation, valid)


def spread(values: np.ndarray, rows: Sequence[int], size: int) -> np.ndarray:
    """The values of some environments as rows of an array for all of them."""
    full = np.zeros((size, *values.shape[1:]), values.dtype)
    full[list(rows)] = values
    return full


def seed_for(seed: int, index: int) -> int:
    """The seed of an environment, from the seed of the run and its index; 31 bits, which every simulator accepts."""
    return int(np.random.SeedSequence([seed, int(index)]).generate_state(1)[0]) & 0x7FFFFFFF


def _observation_spec(name: str, space: spaces.Space) -> tuple[tuple[int, ...], str]:
    if isinstance(space, spaces.Box):
        return tuple(space.shape) or (1,), "uint8" if space.dtype == np.uint8 else "float32"
    if isinstance(space, spaces.Discrete):
        return (int(space.n),), "float32"
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        return (math.prod(space.shape),), "float32"
    if isinstance(space, spaces.Dict | spaces.Tuple) and all(map(_is_flattable, _leaves(space))):
        return (spaces.flatdim(space),), "float32"
    raise TesseraError(
        f"{name} observes {space}, and networks take arrays of one size: wrap the environment so that it "
        "observes a Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these"
    )


def _actions(name: str, space: spaces.Space) -> Actions:
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiDiscrete(tuple(int(n) for n in space.nvec.ravel()))
    if isinstance(space, spaces.MultiBinary):
        return MultiDiscrete((2,) * math.prod(space.shape))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low, high = (tuple(np.asarray(b, np.float32).ravel().tolist()) for b in (space.low, space.high))
        return Box(tuple(space.shape), low, high)
    raise TesseraError(
        f"{name} takes actions {space}, which no algorithm here gives: wrap the environment so that it takes "
        "Discrete, MultiDiscrete, MultiBinary or real Box actions"
    )


def _leaves(space: spaces.Space) -> list[spaces.Space]:
    if isinstance(space, spaces.Dict):
        return [leaf for child in space.spaces.values() for leaf in _leaves(child)]
    if isinstance(space, spaces.Tuple):
        return [leaf for child in space.spaces for leaf in _leaves(child)]
    return [space]


def _is_flattable(space: spaces.Space) -> bool:
    return isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)


def _flat(space: spaces.Space, batch: Any) -> np.ndarray:
    """A whole batch as `gymnasium.spaces.utils.flatten` flattens one observation: float32 [n, size]."""
    if isinstance(space, spaces.Dict):
        return np.concatenate([_flat(child, batch[key]) for key, child in space.spaces.items()], axis=1)
    if isinstance(space, spaces.Tuple):
        parts = [_flat(child, part) for child, part in zip(space.spaces, batch, strict=True)]
        return np.concatenate(parts, axis=1)
    if isinstance(space, spaces.Discrete):
        return _one_hot(batch, int(space.start), int(space.n))
    array = np.asarray(batch)
    if isinstance(space, spaces.MultiDiscrete):
        columns = array.reshape(len(array), -1).T
        starts, sizes = space.start.ravel(), space.nvec.ravel()
        return np.concatenate([_one_hot(*of) for of in zip(columns, starts, sizes, strict=True)], axis=1)
    return array.reshape(len(array), -1).astype(np.float32)


def _one_hot(values: Any, start: int, size: int) -> np.ndarray:
    return (np.asarray(values)[:, None] == np.arange(start, start + size)).astype(np.float32)
