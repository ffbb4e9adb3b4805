"""What every environment looks like to the rest of Tessera: a spec, timesteps, and one of two interfaces.

A *device environment* is pure JAX: it sees one environment, and the framework vectorises it and traces it into the
fragment that holds it. A *host environment* steps many environments at once outside of JAX, in NumPy.
"""

from __future__ import annotations

import math
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
    """Real numbers between bounds; an action is float32 of `shape`. Bounds are flat, in C order, maybe infinite."""

    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def size(self) -> int:
        """How many numbers one action has."""
        return math.prod(self.shape)

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bounds, each of `shape`, float32."""
        low, high = (np.asarray(x, np.float32).reshape(self.shape) for x in (self.low, self.high))
        return low, high


Actions = Discrete | MultiDiscrete | Box

PRECISIONS = ("f32", "bf16", "f64")


@dataclass(frozen=True)
class Spec:
    """What an algorithm is told about the world it acts in."""

    observation_shape: tuple[int, ...]
    observation_dtype: str
    actions: Actions
    precision: str = "f32"
    """In which numbers networks compute: f32, bf16 (parameters stay f32), or f64 (for exact tests; needs x64)."""
    agents: int = 0
    """How many agents share each environment; 0: it has one, and no axis for it. With agents, the leading axis of an
    observation (so of `observation_shape`), of a reward and of an action is theirs; `actions` are one agent's."""
    time_limit: int = 0
    """Steps after which an episode is cut off; 0: not known, or never."""


class Timestep(NamedTuple):
    """What `env` emits for each environment at each step.

    At an episode's end `observation` already belongs to the next episode, and `final` is the observation that the step
    led to. Elsewhere the two are equal.
    """

    observation: Any
    reward: Any
    terminated: Any
    truncated: Any
    final: Any
    valid: Any = None
    """False where nothing was played (the reset step of NEXT_STEP autoreset); None if that never happens."""
    alive: Any = None
    """[agents] which of several agents will act at `observation`; None if there is one, or if none ever drops out."""

    @property
    def first(self) -> Any:
        """Whether an episode begins at `observation`, so that what was remembered of the one before is over."""
        ended = self.terminated | self.truncated
        return ended if self.valid is None else ended | ~self.valid


class DeviceEnvironment:
    """One environment as pure functions. Subclass it, or give an object with the same members.

    `reset` and `step` know nothing of autoreset: the framework calls `restart` at an episode's end.
    """

    name: str
    spec: Spec

    def reset(self, key: Any) -> tuple[Any, Any]:
        """Start an episode: (state, observation)."""
        raise NotImplementedError

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Play one step: (state, observation, reward, terminated, truncated)."""
        raise NotImplementedError

    def restart(self, state: Any, key: Any) -> tuple[Any, Any]:
        """Start the next episode after `state`; for environments whose reset is dear and can be reused."""
        del state
        return self.reset(key)

    def alive(self, state: Any) -> Any:
        """Which of several agents will act in `state`, bool [agents]; None if there is one, or none ever drops out."""
        del state
        return None


class HostVector:
    """Open environments of one replica, stepped together. Arrays have leading axes [groups, environments per group].

    Arrays that were returned are never written to again.
    """

    def reset(self) -> Timestep:
        """Start every environment: reward 0, nothing ended, `final` equal to `observation`.

        The first time from its seed; later on new episodes, as after the end of one.
        """
        raise NotImplementedError

    def step(self, actions: np.ndarray) -> Timestep:
        """Play one step in every environment; actions are within bounds."""
        raise NotImplementedError

    def close(self) -> None:
        """Free what was opened. May be called twice."""


class HostEnvironment:
    """A kind of host environment: knows its spec, and opens vectors of itself."""

    name: str
    spec: Spec
    masks: bool = False
    """Whether some steps are reset steps, so that `Timestep.valid` is an array and not None."""
    mortal: bool = False
    """Whether agents may drop out before an episode ends, so that `Timestep.alive` is an array and not None."""
    threaded: bool = False
    """Whether stepping lets other threads of this process run, so that half of the environments may step meanwhile."""

    def open(self, ids: np.ndarray, seed: int) -> HostVector:
        """Open the environments with global indices `ids` [groups, environments per group].

        What an environment draws depends on the seed and its own index (or its group's), never on which other groups
        are opened beside it.
        """
        raise NotImplementedError


Environment = DeviceEnvironment | HostEnvironment


def is_device(env: Environment) -> bool:
    """Whether `env` can be traced into a compiled program."""
    return not isinstance(env, HostEnvironment)


def same_for_all(name: str, actions: dict[str, Any]) -> Any:
    """The actions that every agent takes, from those of each by name; refuse if two differ."""
    first, *others = actions
    for agent in others:
        if actions[agent] != actions[first]:
            raise TesseraError(
                f"in {name} {first} takes {actions[first]} and {agent} takes {actions[agent]}, and all agents must "
                "take the same actions: wrap the environment so that they do, or choose another"
            )
    return actions[first]


def missing_extra(prefix: str, extra: str, error: ImportError) -> TesseraError:
    """Build the error for an environment family whose package is not installed."""
    return TesseraError(
        f"'{prefix}:' environments need a package that is not installed ({error.name or error}): "
        f"run pip install 'tessera-rl[{extra}]'"
    )
