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
    first_array,
    map_arrays,
)
from tessera.errors import TesseraError, unknown_name

MASK = "action_mask"
"""The key of `info` under which an environment says which of its discrete actions are allowed."""

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
    return GymnasiumEnvironment(name, probe, functools.partial(factory, **options), _mode(autoreset))


def _mode(autoreset: str | None) -> AutoresetMode:
    if autoreset is not None and autoreset not in AUTORESETS:
        raise unknown_name("autoreset mode", autoreset, AUTORESETS)
    return AUTORESETS[autoreset or "same_step"]


def _probe(name: str, build: Callable[[], Any]) -> Any:
    """Build an environment that only shows its spaces and metadata."""
    try:
        env = build()
    except gymnasium.error.DependencyNotInstalled as error:
        raise TesseraError(f"{name} needs a package that is not installed: {error}") from error
    except gymnasium.error.Error as error:
        raise TesseraError(f"{name} cannot be made with these options: {error}") from error
    return env


def gives_masks(env: Any, actions: Actions) -> bool:
    """Whether the environment says at a reset which of its discrete actions are allowed."""
    if isinstance(actions, Box):
        return False
    try:
        _, info = env.reset(seed=0)
        return MASK in info
    except Exception:  # what is wrong shows, by name, when the run resets it
        return False


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
        restricted = gives_masks(probe, self._spaces.spec.actions)
        probe.close()
        self._spaces.spec = dataclasses.replace(self._spaces.spec, time_limit=limit, restricted=restricted)
        self.spec = self._spaces.spec
        self.observation_bounds = self._spaces.bounds()
        self.masks = mode is AutoresetMode.NEXT_STEP
        self._factory, self._mode, self._vectorised = factory, mode, vectorised

    def translate(self, observation: Any) -> Any:
        """A number of a Discrete space, or a dict or tuple, as arrays."""
        return self._spaces.translate(observation)

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
        begun = [env.reset(seed=seed) for env, seed in zip(self._envs, self._seeds, strict=True)]
        self._seeds = [None] * len(self._seeds)
        observations, infos = zip(*begun, strict=True)
        rows = range(len(self._envs))
        return first_timestep(self._array(observations, rows), legal=self._legal(infos, rows))

    def step(self, actions: np.ndarray) -> Timestep:
        """Play one step in every environment."""
        return self._play(actions, range(len(self._envs)))

    def step_some(self, actions: np.ndarray, which: np.ndarray) -> Timestep:
        """Play one step in the environments `which`."""
        return self._play(actions, np.flatnonzero(which).tolist())

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
        if len(rows) < len(self._envs):
            arrays = map_arrays(lambda x: spread(x, rows, len(self._envs)), arrays)
        return grouped(arrays, self._shape)

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
        if self._ended.any() and self._mode is AutoresetMode.SAME_STEP:
            last = [self._final(i, info) for i, info in enumerate(infos)]
            final, final_legal = self._patched((observation, legal), last)
        elif self._ended.any() and self._mode is AutoresetMode.DISABLED:
            observation, legal = self._patched((final, legal), [self._restarted(i) for i in range(len(self._parts))])
        columns = (observation, rewards, terminated, truncated, final, valid, None, legal, final_legal)
        return Timestep(*(None if column is None else self._grouped(column) for column in columns))

    def _ended_in(self, index: int) -> np.ndarray:
        return self._ended[index * self._size : (index + 1) * self._size]

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


class Spaces:
    """Translates between Gymnasium's spaces and the arrays of Tessera's networks."""

    def __init__(self, name: str, observations: spaces.Space, actions: spaces.Space) -> None:
        self._observations, self._actions = observations, actions
        self.spec = Spec(*_observation_spec(name, observations), _actions(name, actions))

    def bounds(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Lower and upper bounds of encoded observations; None for a tree."""
        if self.spec.is_tree:
            return None
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

    def encode(self, batch: Any) -> Any:
        """Translate a batch of observations to fresh, C-contiguous arrays [n, ...], in the tree of the spec."""
        return _encoded(self._observations, self.spec.observation, batch)

    def translate(self, observation: Any) -> Any:
        """One observation of the space as arrays; None if it is no such, or an array that needs no translation."""
        space = self._observations
        if isinstance(space, spaces.Box) or not space.contains(observation):
            return None
        return map_arrays(lambda x: x[0], self.encode(self.stack([observation])))

    def mask(self, given: Any) -> np.ndarray:
        """Which actions are allowed, bool [k], from what an environment says; several choices are joined."""
        size = self.spec.alternatives
        if isinstance(given, tuple | list):
            given = np.concatenate([np.ravel(part) for part in given])
        mask = np.ravel(np.asarray(given)) if given is not None else np.zeros(0)
        if mask.shape != (size,):
            raise ValueError(f"info[{MASK!r}] must have {size} entries at every reset and step, and has {mask.size}")
        return mask.astype(bool)

    def decode(self, actions: np.ndarray) -> np.ndarray:
        """Translate actions [..., *action shape] to the environment's own."""
        space = self._actions
        if isinstance(space, spaces.Discrete):
            return np.asarray(actions, space.dtype) + space.start
        shape = tuple(space.shape or ())
        axes = 1 if isinstance(self.spec.actions, MultiDiscrete) else len(shape)
        actions = np.asarray(actions, space.dtype).reshape(*actions.shape[: actions.ndim - axes], *shape)
        return actions + space.start if isinstance(space, spaces.MultiDiscrete) else actions


def _encoded(space: spaces.Space, form: Any, batch: Any) -> Any:
    """A batch of a space in the form of the spec: a tree of dicts and tuples, or one array."""
    if isinstance(form, dict) and isinstance(space, spaces.Dict):
        return {key: _encoded(child, form[key], batch[key]) for key, child in space.spaces.items()}
    if isinstance(form, tuple) and isinstance(space, spaces.Tuple):
        return tuple(_encoded(*of) for of in zip(space.spaces, form, batch, strict=True))
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return _flat(space, batch)
    if isinstance(space, spaces.Discrete):
        return _one_hot(batch, int(space.start), int(space.n))
    return np.array(batch, form.dtype, order="C").reshape(-1, *form.shape)


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
    """The values of some environments as rows of an array for all of them."""
    full = np.zeros((size, *values.shape[1:]), values.dtype)
    full[list(rows)] = values
    return full


def seed_for(seed: int, index: int) -> int:
    """The seed of an environment, from the seed of the run and its index; 31 bits, which every simulator accepts."""
    return int(np.random.SeedSequence([seed, int(index)]).generate_state(1)[0]) & 0x7FFFFFFF


def _observation_spec(name: str, space: spaces.Space) -> tuple[Any, Any]:
    """Shapes and dtypes. A Dict or Tuple with an image in it stays a tree; others are flattened to one vector."""
    if isinstance(space, spaces.Dict | spaces.Tuple) and any(map(_is_image, _leaves(space))):
        if isinstance(space, spaces.Dict):
            each = {key: _observation_spec(name, child) for key, child in space.spaces.items()}
            return {key: shape for key, (shape, _) in each.items()}, {key: dtype for key, (_, dtype) in each.items()}
        return tuple(zip(*(_observation_spec(name, child) for child in space.spaces), strict=True))  # type: ignore[return-value]
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


def _is_image(space: spaces.Space) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) == 3


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
