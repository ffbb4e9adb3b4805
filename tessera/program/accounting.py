"""Accounts of episodes: the return of each environment so far, and the episodes that ended within an unroll."""

from __future__ import annotations

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


class Tally(NamedTuple):
    """Episodes that ended within an unroll, and the steps that count: per environment, and in the end their sum."""

    episodes: Any
    return_sum: Any
    length_sum: Any
    steps: Any
    """None during an unroll, if every step counts."""


def account(episode: Episode, timestep: Timestep, xp: Any) -> tuple[Episode, EpisodeStep]:
    """Add one step to the running episodes; `xp` is NumPy or jax.numpy. Rewards of agents count as their mean."""
    counted = 1 if timestep.valid is None else timestep.valid
    done = timestep.terminated | timestep.truncated
    reward = timestep.reward if timestep.reward.ndim == done.ndim else timestep.reward.mean(-1)
    total, length = episode.total + reward * counted, episode.length + counted
    return Episode(xp.where(done, 0, total), xp.where(done, 0, length)), EpisodeStep(
        done, total, length, timestep.valid
    )


def no_episode(timestep: Timestep, xp: Any) -> Episode:
    """An episode without any step, for each environment."""
    shape = timestep.terminated.shape
    return Episode(xp.zeros(shape, timestep.reward.dtype), xp.zeros(shape, xp.int32))


def no_tally(episode: Episode, masks: bool) -> tuple[Tally]:
    """A tally without any step, for each environment."""
    none = (episode.length * 0).astype(np.int32)
    return (Tally(none, none.astype(episode.total.dtype), none, none if masks else None),)


def count(tally: Tally, step: EpisodeStep) -> tuple[Tally]:
    """Count one step of each environment."""
    xp = np if isinstance(step.done, np.ndarray) else jnp
    return (
        Tally(
            tally.episodes + step.done,
            tally.return_sum + xp.where(step.done, step.total, 0),
            tally.length_sum + xp.where(step.done, step.length, 0),
            None if step.valid is None else tally.steps + step.valid,
        ),
    )


def total(tally: Tally, steps: int) -> tuple[Tally]:
    """Sum over environments after an unroll of `steps`."""
    if tally.steps is None:
        tally = tally._replace(steps=jnp.full(tally.episodes.shape, steps, jnp.int32))
    # lengths of one environment fit into 32 bits, but not always their sum
    tally = tally._replace(length_sum=tally.length_sum.astype(tally.return_sum.dtype))
    return (jax.tree.map(jnp.sum, tally),)
