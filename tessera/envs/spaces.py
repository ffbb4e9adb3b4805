"""Gymnasium's spaces as the arrays and actions that networks take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from tessera.envs.base import Actions, Box, Discrete, MultiDiscrete, Spec, map_arrays
from tessera.errors import TesseraError

MASK = "action_mask"
"""The key of `info` under which an environment says which of its discrete actions are allowed."""


class Spaces:
    """Translates between Gymnasium's spaces and the arrays of Tessera's networks."""

    def __init__(self, name: str, observations: spaces.Space, actions: spaces.Space) -> None:
        self._observations, self._actions = observations, actions
        self.spec = Spec(*_observation_spec(name, observations), _actions(name, actions))
        self._form = self.spec.observation

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
        return _encoded(self._observations, self._form, batch)

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
