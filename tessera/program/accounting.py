"""Accounts of episodes: the return of each environment so far, and the episodes that ended within an unroll."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tessera.envs.base import Timestep


class Episode(NamedTuple):
    """Return and length of each environment's episode so far."""

    total: Any
    length: Any


class EpisodeStep(NamedTuple):
    """One step of each environment: whether its episode ended, and its return and length by then."""

    done: Any
    total: Any
    length: Any
    valid: Any
    info: Any = None
    """Numbers by name that a compiled environment tells of the step; None if there are none."""


class Tally(NamedTuple):
    """Episodes that ended within an unroll, and the steps that count: per environment, and in the end their sum."""

    episodes: Any
    return_sum: Any
    length_sum: Any
    steps: Any
    """None during an unroll, if every step counts."""
    info: Any = None
    """Name -> sum and count of what compiled environments tell of their steps; None if that is nothing."""


def account(episode: Episode, timestep: Timestep, xp: Any) -> tuple[Episode, EpisodeStep]:
    """Add one step to the running episodes; `xp` is NumPy or jax.numpy.

    Rewards of agents count as their mean; of players, whose rewards come to nothing together, those of the first.
    """
    counted = 1 if timestep.valid is None else timestep.valid
    done = timestep.terminated | timestep.truncated
    reward = timestep.reward
    if timestep.player is not None:
        reward = reward[..., 0]
    elif reward.ndim > done.ndim:
        reward = reward.mean(-1)
    total, length = episode.total + reward * counted, episode.length + counted
    return Episode(xp.where(done, 0, total), xp.where(done, 0, length)), EpisodeStep(
        done, total, length, timestep.valid
    )


def no_episode(timestep: Timestep, xp: Any) -> Episode:
    """An episode without any step, for each environment."""
    shape = timestep.terminated.shape
    return Episode(xp.zeros(shape, timestep.reward.dtype), xp.zeros(shape, xp.int32))


def no_tally(episode: Episode, masks: bool, names: Iterable[str] = ()) -> tuple[Tally]:
    """A tally without any step, for each environment; `names` are those of numbers that steps tell."""
    none = (episode.length * 0).astype(np.int32)
    real = none.astype(episode.total.dtype)
    return (Tally(none, real, none, none if masks else None, dict.fromkeys(names, (real, none)) or None),)


def count(tally: Tally, step: EpisodeStep) -> tuple[Tally]:
    """Count one step of each environment."""
    xp = np if isinstance(step.done, np.ndarray) else jnp
    return (
        Tally(
            tally.episodes + step.done,
            tally.return_sum + xp.where(step.done, step.total, 0),
            tally.length_sum + xp.where(step.done, step.length, 0),
            None if step.valid is None else tally.steps + step.valid,
            None if step.info is None else {name: _added(tally.info[name], x, xp) for name, x in step.info.items()},
        ),
    )


def numbers_in(info: Any, agents: int) -> dict[str, Any]:
    """The numbers that a compiled environment tells of a step: scalars, and means over agents."""
    shapes = ((), (agents,)) if agents else ((),)
    found = {name: x for name, x in (info or {}).items() if _is_real(x) and jnp.shape(x) in shapes}
    return {name: jnp.asarray(x, float).mean() for name, x in found.items()}


def _is_real(x: Any) -> bool:
    """Whether a value is a number, a boolean or an array of such."""
    if isinstance(x, bool | int | float):
        return True
    return hasattr(x, "dtype") and any(jnp.issubdtype(x.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))


def _added(sums: tuple[Any, Any], number: Any, xp: Any) -> tuple[Any, Any]:
    """A sum and its count with one more number; one that is not finite is left out."""
    finite = xp.isfinite(number)
    return sums[0] + xp.where(finite, number, 0), sums[1] + finite


def total(tally: Tally, steps: int) -> tuple[Tally]:
    """Sum over environments after an unroll of `steps`."""
    if tally.steps is None:
        tally = tally._replace(steps=jnp.full(tally.episodes.shape, steps, jnp.int32))
    # lengths of one environment fit into 32 bits, but not always their sum
    tally = tally._replace(length_sum=tally.length_sum.astype(tally.return_sum.dtype))
    return (jax.tree.map(jnp.sum, tally),)
