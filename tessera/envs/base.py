"""The interface of environments: a spec, timesteps, and one of two ways to step.

A *device environment* is pure JAX code for one environment; the framework vectorises it and traces it into the
fragment that holds it. A *host environment* steps many environments at once outside of JAX, in NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tessera.envs.drawing.reel import Reel
from tessera.envs.drawing.shapes import Artist
from tessera.envs.info import InfoTotals, merge_totals
from tessera.envs.spec import (
    PRECISIONS,
    Actions,
    Array,
    Box,
    Discrete,
    MultiDiscrete,
    Spec,
    Symmetry,
    first_array,
    map_arrays,
)
from tessera.errors import TesseraError
from tessera.support.extras import install_hint

__all__ = [
    "PRECISIONS",
    "Actions",
    "Array",
    "Box",
    "DeviceEnvironment",
    "Discrete",
    "Environment",
    "HostEnvironment",
    "HostVector",
    "InfoTotals",
    "MultiDiscrete",
    "Spec",
    "Symmetry",
    "Timestep",
    "first_array",
    "is_device",
    "map_arrays",
    "merge_totals",
    "missing_extra",
    "same_for_all",
]


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
    final_player: Any = None
    """The same at `final`."""
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
    keeps: str = ""
    """What its state keeps over episodes and an agent by itself does not have, in words; nothing for most."""
    opponent: str = ""
    """Who plays the other side, in a game that is played against somebody; an episode is then won, drawn or lost."""

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

    def position(self, state: Any) -> Any:
        """The state that a search of this environment starts from: that of the game, if it is more than the game."""
        return state

    def info(self, state: Any) -> dict[str, Any]:
        """Numbers of the step that led to `state`, for the metrics `info/NAME`; NaN where a step has none.

        Each is a scalar, or [agents], of which the mean counts.
        """
        del state
        return {}

    def artist(self, height: int) -> Artist:
        """What draws its states, for videos; pixels have so many rows, shapes are of any size."""
        del height
        raise TesseraError(f"{self.name} cannot be drawn: nothing says what it looks like; give it a method artist")


class HostVector:
    """Open environments of one replica, stepped together. Arrays have leading axes [groups, environments per group].

    Returned arrays are never written to again.
    """

    played: int = 0
    """Steps that each environment has played since they were opened, for messages; the framework counts them."""

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

    def tried(self, which: np.ndarray) -> np.ndarray:
        """What each legal move in the games `which` would earn at once for who plays it, float32 [..., actions].

        Only games with `tries_moves` have this. Nothing is played.
        """
        raise NotImplementedError

    def take_info(self) -> InfoTotals:
        """Name -> [sum, count] of the numbers in `info` since this was last called, for the metrics `info/NAME`."""
        return {}

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
    keeps: str = ""
    """What its vectors keep over episodes and neither an agent by itself nor a resumed run has, in words."""
    opponent: str = ""
    """Who plays the other side, in a game that is played against somebody."""
    tries_moves: bool = False
    """Whether its vectors say what each move of a game would earn (`HostVector.tried`)."""
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

    def filmed(self, reel: Reel, height: int) -> HostEnvironment:
        """The same environments, opened so that frames go to a reel as one of them is played; pixels have about so many
        rows, where that can be chosen."""
        del reel, height
        raise TesseraError(f"{self.name} cannot be drawn: nothing says what it looks like; give it a method filmed")


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
