"""What is known of an environment before it is played: its observations, one array or a tree, and its actions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tessera.errors import TesseraError


@dataclass(frozen=True)
class Discrete:
    """One choice out of `n`; an action is an int32 scalar."""

    n: int


@dataclass(frozen=True)
class MultiDiscrete:
    """Several choices at once, the i-th out of `choices[i]`; an action is int32 [len(choices)]."""

    choices: tuple[int, ...]


@dataclass(frozen=True)
class Box:
    """Real numbers within bounds; an action is float32 of `shape`. Bounds, some maybe infinite, are flat in C order."""

    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def size(self) -> int:
        """Numbers in one action."""
        return math.prod(self.shape)

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bounds, each of `shape`, float32."""
        low, high = (np.asarray(x, np.float32).reshape(self.shape) for x in (self.low, self.high))
        return low, high


Actions = Discrete | MultiDiscrete | Box


class Symmetry(NamedTuple):
    """A change of a board after which a game is the same, if moves are changed with it."""

    cells: tuple[int, ...]
    """Cell of the new board, in C order -> cell of the old one that it shows."""
    actions: tuple[int, ...]
    """Action on the new board -> action on the old one."""


PRECISIONS = ("f32", "bf16", "f64")


@dataclass(frozen=True)
class Array:
    """Shape and dtype of one array of an observation."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def is_image(self) -> bool:
        """Whether it has three axes."""
        return len(self.shape) == 3

    @property
    def is_pixels(self) -> bool:
        """Whether it is an image of bytes; other images are boards, as in MinAtar."""
        return self.is_image and self.dtype == "uint8"


@dataclass(frozen=True)
class Spec:
    """What an algorithm knows about its environment.

    Observations are one array, or a tree of dicts and tuples of arrays. Then `observation_shape` is such a tree of
    shapes, and `observation_dtype` one of dtypes, or one dtype for all.
    """

    observation_shape: Any
    observation_dtype: Any
    actions: Actions
    precision: str = "f32"
    """Precision of networks: f32, bf16 (params stay f32), or f64 (for exact tests; needs x64)."""
    agents: int = 0
    """Agents in each environment; 0: one agent, without an axis. Otherwise observations (so `observation_shape`),
    rewards and actions have a leading axis for agents; `actions` are those of one agent."""
    time_limit: int = 0
    """Steps after which an episode is truncated; 0: unknown, or never."""
    restricted: bool = False
    """Whether some discrete actions are not always allowed, so that `Timestep.legal` is an array and not None."""
    players: int = 1
    """Players who take turns, in a game that one network plays for all of them; `Timestep.player` says whose turn it
    is. Rewards have an axis for players."""
    hidden: bool = False
    """Whether a player does not see all of the state, as in games of cards."""
    symmetries: tuple[Symmetry, ...] = ()
    """Changes of the board that change nothing else, of which the first is none; () if there are none, or unknown."""

    def __hash__(self) -> int:
        """Trees of dicts have no hash of their own."""
        parts = tuple((path, part.shape, part.dtype) for path, part in self.parts.items())
        return hash(
            (
                parts,
                self.actions,
                self.precision,
                self.agents,
                self.time_limit,
                self.restricted,
                self.players,
                self.hidden,
            )
        )

    @property
    def observation(self) -> Any:
        """The observation as a tree whose leaves are `Array`s; one `Array` if it is no tree."""
        return _arrays(self.observation_shape, self.observation_dtype)

    @property
    def parts(self) -> dict[str, Array]:
        """The arrays of an observation by their path in the tree, such as `camera/left`; in the order of JAX's leaves.

        The one array of an observation that is no tree has an empty path.
        """
        return dict(_leaves(self.observation))

    @property
    def array(self) -> Array:
        """The one array of an observation; refuses a tree."""
        observation = self.observation
        if not isinstance(observation, Array):
            raise TesseraError(
                f"this needs observations of one array, and these have {', '.join(self.parts)}: choose a part of them "
                "by a wrapper of yours, or an algorithm and options that read all"
            )
        return observation

    @property
    def is_tree(self) -> bool:
        """Whether observations are a tree of arrays."""
        return not isinstance(self.observation, Array)

    @property
    def images(self) -> bool:
        """Whether an observation holds an image."""
        return any(part.is_image for part in self.parts.values())

    @property
    def pixels(self) -> bool:
        """Whether an observation holds an image of bytes."""
        return any(part.is_pixels for part in self.parts.values())

    @property
    def boards(self) -> bool:
        """Whether it holds images, but none of bytes."""
        return self.images and not self.pixels

    @property
    def is_vector(self) -> bool:
        """Whether it is one array with one axis."""
        return not self.is_tree and len(self.observation_shape) == 1

    @property
    def alternatives(self) -> int:
        """Length of a mask over one agent's actions: the alternatives of all choices; 0 for a Box."""
        match self.actions:
            case Discrete(n):
                return n
            case MultiDiscrete(choices):
                return sum(choices)
        return 0

    @property
    def reward_shape(self) -> tuple[int, ...]:
        """Shape of the reward in one environment: one for each agent, or each player."""
        if self.agents:
            return (self.agents,)
        return (self.players,) if self.players > 1 else ()

    @property
    def mask_shape(self) -> tuple[int, ...]:
        """Shape of the masks in one environment."""
        return (self.agents, self.alternatives) if self.agents else (self.alternatives,)

    def zeros(self, xp: Any, *batch: int) -> Any:
        """An observation of zeros, with leading axes `batch`; `xp` is NumPy or jax.numpy."""
        return map_arrays(lambda part: xp.zeros((*batch, *part.shape), part.dtype), self.observation)


def map_arrays(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Map over the leaves of dicts and tuples, which needs no JAX; None stays None."""
    if isinstance(tree, dict):
        return {key: map_arrays(function, child, *(other[key] for other in others)) for key, child in tree.items()}
    if isinstance(tree, tuple | list):
        parts = [map_arrays(function, *children) for children in zip(tree, *others, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return None if tree is None else function(tree, *others)


def first_array(tree: Any) -> Any:
    """Some leaf of a tree: it has the leading axes that all of them have."""
    while isinstance(tree, dict | tuple | list):
        tree = next(iter(tree.values() if isinstance(tree, dict) else tree))
    return tree


def _arrays(shape: Any, dtype: Any) -> Any:
    """A tree of `Array`s from trees of shapes and dtypes; the keys of dicts are in the order of JAX's leaves."""
    if isinstance(shape, dict):
        dtypes = dtype if isinstance(dtype, dict) else dict.fromkeys(shape, dtype)
        return {key: _arrays(shape[key], dtypes[key]) for key in sorted(shape)}
    if any(isinstance(child, dict | tuple) for child in shape):
        each = dtype if isinstance(dtype, tuple) else (dtype,) * len(shape)
        return tuple(_arrays(child, of) for child, of in zip(shape, each, strict=True))
    return Array(tuple(shape), str(dtype))


def _leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Array]]:
    if isinstance(tree, Array):
        yield path, tree
        return
    children = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, child in children:
        yield from _leaves(child, f"{path}/{key}" if path else str(key))
