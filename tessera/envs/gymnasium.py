"""Gymnasium environments: registered ids, classes and factories, stepped one by one or by their own vector version."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from tessera.envs.base import Actions, Box, HostEnvironment, HostVector
from tessera.envs.drawing.reel import Reel, recorded
from tessera.envs.mujoco_warnings import use_python_warnings
from tessera.envs.spaces import MASK, Spaces
from tessera.envs.vectors import OneByOne, VectorEnvs, seed_for
from tessera.errors import RAISED_BY_USERS, TesseraError, unknown_name

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
    factory = functools.partial(_make_one, identifier, disable_env_checker=True, **options)
    vectorised = functools.partial(gymnasium.make_vec, identifier, vectorization_mode="vector_entry_point", **options)
    if spec.vector_entry_point is not None:
        native = _probe(identifier, functools.partial(vectorised, num_envs=1))
        mode = native.metadata.get("autoreset_mode")
        if isinstance(mode, AutoresetMode) and (autoreset is None or mode is _mode(autoreset)):
            return GymnasiumEnvironment(f"gymnasium:{name}", native, factory, mode, vectorised)
    return wrap(factory, _probe(identifier, factory), f"gymnasium:{name}", autoreset, {})


def _make_one(identifier: str, **options: Any) -> gymnasium.Env:
    if "mujoco" in str(gymnasium.spec(identifier).entry_point):
        use_python_warnings()
    return gymnasium.make(identifier, **options)


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
    except RAISED_BY_USERS:  # what is wrong shows, by name, when the run resets it
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


def _wrapped(factory: Callable[..., Any], wrappers: Sequence[Callable[[Any], Any]], **options: Any) -> Any:
    return functools.reduce(lambda env, wrapper: wrapper(env), wrappers, factory(**options))


class GymnasiumEnvironment(HostEnvironment):
    """A kind of Gymnasium environment, stepped in this process."""

    def __init__(
        self,
        name: str,
        probe: Any,
        factory: Callable[..., Any],
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

    def one_by_one(self) -> GymnasiumEnvironment:
        """The same without a vector version."""
        alone = copy.copy(self)
        alone._mode, alone._vectorised, alone.masks = AutoresetMode.SAME_STEP, None, False
        return alone

    def single(self) -> Any:
        """One environment as Gymnasium makes it."""
        return self._factory()

    def filmed(self, reel: Reel, height: int) -> HostEnvironment:
        """The same, stepped one by one, with what render() gives."""
        del height
        filmed = self.one_by_one()
        filmed._factory = recorded(self.name, self._factory, reel)
        return filmed

    def wrapped_in(self, wrappers: Sequence[Callable[[Any], Any]]) -> GymnasiumEnvironment:
        """The same with wrappers around each single environment, the first one innermost."""
        factory = functools.partial(_wrapped, self._factory, tuple(wrappers))
        probe = _probe(self.name, factory)
        mode = AutoresetMode.SAME_STEP if self._vectorised is not None else self._mode
        wrapped = GymnasiumEnvironment(self.name, probe, factory, mode)
        wrapped.spec = dataclasses.replace(wrapped.spec, precision=self.spec.precision)
        return wrapped
