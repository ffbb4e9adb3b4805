"""What a wrapper changes, as pure functions that compute in NumPy on the host and in JAX on a device.

The same code runs in both places, so a wrapper gives the same numbers in both. Observations may be trees: dicts and
tuples of arrays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tessera.envs.base import Spec, map_arrays


class Outcome(NamedTuple):
    """What a step leads to; `observation` is the last one of an episode that ends."""

    observation: Any
    reward: Any
    terminated: Any
    truncated: Any


class Arrays(NamedTuple):
    """The arrays that a transform gets: of which module, and how many leading axes count environments."""

    xp: Any
    lead: int


class Transform:
    """One change of an environment. Its memory, if any, is carried beside the state of the environment."""

    words: str
    """What it does, as `tessera plan` prints it."""
    draws: bool = False
    """Whether `before` needs a random number."""
    keeps: str = ""
    """What its memory keeps over episodes, in words; nothing for most."""
    cuts: bool = False
    """Whether it ends episodes that would go on."""

    def spec(self, spec: Spec) -> Spec:
        """The spec of the changed environment."""
        return spec

    def bounds(self, bounds: Any) -> Any:
        """Bounds of changed observations, (low, high), from those of the environment's own; None if unknown."""
        return bounds

    def start(self, observation: Any, memory: Any, arrays: Arrays) -> tuple[Any, Any]:
        """An episode begins: (memory, observation); `memory` is that of the episode before, None for the first."""
        del memory, arrays
        return (), observation

    def before(self, memory: Any, action: Any, uniform: Any, arrays: Arrays) -> tuple[Any, Any]:
        """Before a step: (memory, action that is played); `uniform` is a draw from [0, 1)."""
        del uniform, arrays
        return memory, action

    def after(self, memory: Any, outcome: Outcome, arrays: Arrays) -> tuple[Any, Outcome]:
        """After a step: (memory, what the user sees)."""
        del arrays
        return memory, outcome


def pick(mask: Any, chosen: Any, other: Any, xp: Any) -> Any:
    """The leaves of `chosen` where `mask` [environments] is true, else those of `other`."""

    def leaf(x: Any, y: Any) -> Any:
        return xp.where(mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim)), x, y)

    return map_arrays(leaf, chosen, other)
