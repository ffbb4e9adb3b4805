"""`gymnax:` environments: pure JAX, so they are traced into the fragment that holds them."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tessera.envs.base import Actions, Box, DeviceEnvironment, Discrete, Spec
from tessera.envs.drawing.shapes import Artist
from tessera.errors import TesseraError, unknown_name

DRAWING = ("seaborn", "matplotlib.pyplot")
"""Modules that gymnax imports for `render` alone; with scipy.stats and pandas they take over a second."""


class _Deferred(ModuleType):
    """A stand-in for a module, which is imported when an attribute of it is used."""

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # the import system reads these
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self.__name__), attribute)


def import_gymnax() -> ModuleType:
    """Import gymnax without the libraries that it draws with.

    importlib's LazyLoader does not help: the import statement reads `__spec__` of a module in `sys.modules`, which
    makes a lazy one load at once. The stand-ins are removed from `sys.modules` again, for other importers.
    """
    stand_ins = [name for name in DRAWING if "gymnax" not in sys.modules and name not in sys.modules]
    sys.modules.update({name: _Deferred(name) for name in stand_ins})
    try:
        return importlib.import_module("gymnax")
    finally:
        for name in stand_ins:
            if isinstance(sys.modules.get(name), _Deferred):
                del sys.modules[name]


def make(name: str, **options: Any) -> GymnaxEnvironment:
    """Make a registered gymnax environment; options are fields of its EnvParams or arguments of its class."""
    try:
        gymnax = import_gymnax()
    except ImportError as error:
        raise TesseraError(
            f"'gymnax:' environments need a package that is not installed ({error.name or error}): "
            "run pip install 'gymnax>=1.0' six"
        ) from error
    if name not in gymnax.registered_envs:
        raise unknown_name("gymnax environment", name, gymnax.registered_envs)
    env, params = gymnax.make(name)
    fields = {key: options.pop(key) for key in list(options) if hasattr(params, key)}
    if options:  # the others are for the constructor
        env, params = gymnax.make(name, **options)
    if not hasattr(env, "is_truncated"):
        raise TesseraError("this gymnax does not tell truncation apart: run pip install 'gymnax>=1.0'")
    return GymnaxEnvironment(name, env, params.replace(**fields))


class GymnaxEnvironment(DeviceEnvironment):
    """One gymnax environment, without gymnax's own autoreset."""

    def __init__(self, name: str, env: Any, params: Any) -> None:
        self.name = f"gymnax:{name}"
        self._env, self._params = env, params
        self._space = env.observation_space(params)
        # From a traced reset, because the shape of the space is not always that of observations.
        shape = jax.eval_shape(self.reset, jax.random.key(0))[1].shape
        self.spec = Spec(shape, "float32", actions_of(self.name, env.action_space(params)), time_limit=_limit(params))
        self.observation_bounds = _bounds(self._space, shape)

    def __reduce__(self) -> tuple[Any, ...]:
        """Have a process that unpickles this import gymnax as `make` does, before it meets gymnax's own classes."""
        return _without_state, (type(self),), self.__dict__

    def reset(self, key: Any) -> tuple[Any, Any]:
        """Start an episode: (state, observation)."""
        observation, state = self._env.reset_env(key, self._params)
        return settle(state, state), _encode(self._space, observation)

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Play one step: (state, observation, reward, terminated, truncated)."""
        observation, stepped, reward, terminated, _ = self._env.step_env(key, state, action, self._params)
        truncated = self._env.is_truncated(stepped, self._params)
        return (
            settle(stepped, state),
            _encode(self._space, observation),
            jnp.asarray(reward, jnp.result_type(float)),
            jnp.asarray(terminated, bool),
            jnp.asarray(truncated, bool),
        )

    def artist(self, height: int) -> Artist:
        """What draws its states."""
        from tessera.envs.drawing.gymnax import artist_of

        del height
        return artist_of(self.name, self._env, self._params)


def _without_state(kind: type[GymnaxEnvironment]) -> GymnaxEnvironment:
    import_gymnax()
    return kind.__new__(kind)


def _bounds(space: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray] | None:
    """Bounds of observations, where a space says them for their shape."""
    try:
        low, high = (np.broadcast_to(np.asarray(bound, np.float32), shape) for bound in (space.low, space.high))
    except (AttributeError, ValueError):
        return None
    return low, high


def _limit(params: Any) -> int:
    return int(getattr(params, "max_steps_in_episode", 0))


def settle(state: Any, like: Any) -> Any:
    """Make every leaf of `state` an array of its dtype in `like`, so that a scan can carry it.

    Needed for Python numbers and weak types: the time of an episode is `0` after a reset, an array later.
    """

    def leaf(value: Any, template: Any) -> jax.Array:
        value, dtype = jnp.asarray(value), jnp.asarray(template).dtype
        if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):  # a random key has one dtype only
            return value
        return value.astype(dtype)

    return jax.tree.map(leaf, state, like)


def _encode(space: Any, observation: Any) -> jax.Array:
    """An observation as float32: arrays unchanged, choices one-hot, dicts and tuples as one flat vector."""
    if hasattr(space, "spaces"):
        parts = space.spaces.items() if isinstance(space.spaces, dict) else enumerate(space.spaces)
        return jnp.concatenate([_encode(child, _part(observation, key)).ravel() for key, child in parts])
    if hasattr(space, "n"):
        return jax.nn.one_hot(observation, space.n, dtype=jnp.float32)
    return jnp.asarray(observation, jnp.float32)


def _part(observation: Any, key: Any) -> Any:
    """One entry of a composite observation; gymnax allows dicts, tuples and dataclasses."""
    return observation[key] if isinstance(observation, dict | tuple | list) else getattr(observation, key)


def actions_of(name: str, space: Any) -> Actions:
    """The actions of one of gymnax's spaces; refuse others, naming the environment."""
    if hasattr(space, "n"):
        return Discrete(int(space.n))
    if hasattr(space, "low"):
        shape = tuple(space.shape)
        bounds = (np.broadcast_to(np.asarray(bound, np.float32), shape) for bound in (space.low, space.high))
        low, high = (tuple(bound.ravel().tolist()) for bound in bounds)
        return Box(shape, low, high)
    raise TesseraError(
        f"{name} takes actions {space}, and Tessera gives discrete and box ones: wrap it in an "
        "environment of your own that translates"
    )
