"""The interface of environments: a spec, timesteps, and one of two ways to step.

A *device environment* is pure JAX code for one environment; the framework vectorises it and traces it into the
fragment that holds it. A *host environment* steps many environments at once outside of JAX, in NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tessera.errors import TesseraError
from tessera.support.extras import install_hint


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
    is."""

    def __hash__(self) -> int:
        """Trees of dicts have no hash of their own."""
        parts = tuple((path, part.shape, part.dtype) for path, part in self.parts.items())
        return hash((parts, self.actions, self.precision, self.agents, self.time_limit, self.restricted, self.players))

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
    """A tree of `Array`s from trees of shapes and dtypes."""
    if isinstance(shape, dict):
        return {key: _arrays(child, dtype[key] if isinstance(dtype, dict) else dtype) for key, child in shape.items()}
    if any(isinstance(child, dict | tuple) for child in shape):
        each = dtype if isinstance(dtype, tuple) else (dtype,) * len(shape)
        return tuple(_arrays(child, of) for child, of in zip(shape, each, strict=True))
    return Array(tuple(shape), str(dtype))


def _leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Array]]:
    if isinstance(tree, Array):
        yield path, tree
        return
    children = sorted(tree.items()) if isinstance(tree, dict) else enumerate(tree)
    for key, child in children:
        yield from _leaves(child, f"{path}/{key}" if path else str(key))


class Timestep(NamedTuple):
    """The output of `env` for each environment at each step.

    At the end of an episode `observation` already belongs to the next one, and `final` is the last observation of the
    old one. Elsewhere the two are equal.
    """

    observation: Any
    reward: Any
    terminated: Any
    truncated: Any
    final: Any
    valid: Any = None
    """False for a reset step of NEXT_STEP autoreset, in which nothing is played; None if there are none."""
    alive: Any = None
    """[agents] which agents act at `observation`; None for one agent, or if no agent ever drops out."""
    legal: Any = None
    """[n] which discrete actions are allowed at `observation`, for several choices one after the other, with a leading
    axis for agents if there are several; None if all always are."""
    final_legal: Any = None
    """The same at `final`."""
    player: Any = None
    """Whose turn it is at `observation`, from 0 on; None if there is one player."""
    state: Any = None
    """The environment's own state at `observation`, for algorithms that search (`reads_state`), else None. It is never
    recorded."""

    @property
    def first(self) -> Any:
        """Whether an episode begins at `observation`, so that recurrent state is reset."""
        ended = self.terminated | self.truncated
        return ended if self.valid is None else ended | ~self.valid


class DeviceEnvironment:
    """One environment as pure functions. Subclass it, or give an object with the same members.

    `reset` and `step` do not reset automatically: the framework calls `restart` at the end of an episode.
    """

    name: str
    spec: Spec
    observation_bounds: tuple[np.ndarray, np.ndarray] | None = None
    """Lower and upper bounds of observations, each of `observation_shape`; None if unknown."""
    forgets: str = ""
    """What a resumed run has lost: nothing, because checkpoints hold the whole state."""

    def reset(self, key: Any) -> tuple[Any, Any]:
        """Start an episode: (state, observation)."""
        raise NotImplementedError

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Play one step: (state, observation, reward, terminated, truncated)."""
        raise NotImplementedError

    def restart(self, state: Any, key: Any) -> tuple[Any, Any]:
        """Start the next episode after `state`; for environments whose reset is expensive and can be reused."""
        del state
        return self.reset(key)

    def alive(self, state: Any) -> Any:
        """Which agents act in `state`, bool [agents]; None for one agent, or if no agent ever drops out."""
        del state
        return None

    def legal(self, state: Any) -> Any:
        """Which discrete actions are allowed in `state`, bool [n]; None if all always are.

        Several choices are one after the other, [sum of choices]; several agents are a leading axis.
        """
        del state
        return None

    def player(self, state: Any) -> Any:
        """Whose turn it is in `state`, int32 from 0 on; None if there is one player."""
        del state
        return None


class HostVector:
    """Open environments of one replica, stepped together. Arrays have leading axes [groups, environments per group].

    Returned arrays are never written to again.
    """

    def reset(self) -> Timestep:
        """Start every environment: reward 0, nothing ended, `final` equal to `observation`.

        The first call starts from the seeds; later calls start new episodes.
        """
        raise NotImplementedError

    def step(self, actions: np.ndarray) -> Timestep:
        """Play one step in every environment; actions are within bounds."""
        raise NotImplementedError

    def step_some(self, actions: np.ndarray, which: np.ndarray) -> Timestep:
        """Play one step in the environments `which` [groups, environments per group]; the others' entries mean nothing.

        Only environments opened by `HostEnvironment.one_by_one` have this and `restart`.
        """
        raise NotImplementedError

    def restart(self, which: np.ndarray) -> Timestep:
        """Start new episodes in the environments `which`, as `reset` does; the entries of the others mean nothing."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the environments. May be called twice."""


class HostEnvironment:
    """A kind of host environment: its spec, and a way to open many of it."""

    name: str
    spec: Spec
    masks: bool = False
    """Whether some steps are reset steps, so that `Timestep.valid` is an array and not None."""
    mortal: bool = False
    """Whether agents may drop out before an episode ends, so that `Timestep.alive` is an array and not None."""
    threaded: bool = False
    """Whether a step lets other threads run, so that one part of the environments can step during another."""
    observation_bounds: tuple[np.ndarray, np.ndarray] | None = None
    """Lower and upper bounds of observations, each of `observation_shape`; None if unknown."""
    forgets: str = ""
    """What its vectors keep over episodes and a resumed run has lost, for the note that says so."""
    instead: ClassVar[Mapping[str, str]] = {}
    """Wrapper that needs `one_by_one` -> the environment's own option that does the same."""

    def translate(self, observation: Any) -> Any:
        """One observation as the environment's own interface gives it, in the form of the spec; None if it is so."""
        del observation
        return None

    def open(self, ids: np.ndarray, seed: int) -> HostVector:
        """Open the environments with global indices `ids` [groups, environments per group].

        The randomness of an environment depends on the seed and on its index (or that of its group), never on which
        other groups are open.
        """
        raise NotImplementedError

    def one_by_one(self) -> HostEnvironment | None:
        """The same environments, opened so that each can be stepped and restarted alone; None if that cannot be.

        They are reset in the step that ends an episode.
        """
        return None

    def single(self) -> Any:
        """One environment as its library makes it, without our wrappers, for checks; None if it has no such form."""
        return None


Environment = DeviceEnvironment | HostEnvironment


def is_device(env: Environment) -> bool:
    """Whether `env` is traced into the compiled program."""
    return not isinstance(env, HostEnvironment)


def same_for_all(name: str, actions: dict[str, Any]) -> Any:
    """The actions that all agents take, from the actions of each by name; refuse agents that differ."""
    first, *others = actions
    for agent in others:
        if actions[agent] != actions[first]:
            raise TesseraError(
                f"in {name} {first} takes {actions[first]} and {agent} takes {actions[agent]}, and all agents must "
                "take the same actions: wrap the environment so that they do, or choose another"
            )
    return actions[first]


def missing_extra(prefix: str, extra: str, error: ImportError) -> TesseraError:
    """The error for an environment family whose package is not installed."""
    return TesseraError(
        f"'{prefix}:' environments need a package that is not installed ({error.name or error}): "
        f"run {install_hint(extra)}"
    )
