"""Accounts of episodes: what each environment has earned, and what ended within an unroll."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tessera.envs.base import Timestep


class Episode(NamedTuple):
    """What each environment has earned since its episode began."""

    total: Any
    length: Any


class EpisodeStep(NamedTuple):
    """One step as episodes see it."""

    done: Any
    total: Any
    length: Any
    valid: Any


class Tally(NamedTuple):
    """Episodes that ended within an unroll, and the steps that count; per environment, then over a replica's."""

    episodes: Any
    return_sum: Any
    length_sum: Any
    steps: Any
    """While an unroll is under way None where every step counts."""


def account(episode: Episode, timestep: Timestep, xp: Any) -> tuple[Episode, EpisodeStep]:
    """Add one step to the running episodes; `xp` is NumPy or jax.numpy. What agents earn counts as their mean."""
    counted = 1 if timestep.valid is None else timestep.valid
    done = timestep.terminated | timestep.truncated
    reward = timestep.reward if timestep.reward.ndim == done.ndim else timestep.reward.mean(-1)
    total, length = episode.total + reward * counted, episode.length + counted
    return Episode(xp.where(done, 0, total), xp.where(done, 0, length)), EpisodeStep(
        done, total, length, timestep.valid
    )


def no_episode(timestep: Timestep, xp: Any) -> Episode:
    """Nothing earned yet, for each environment."""
    shape = timestep.terminated.shape
    return Episode(xp.zeros(shape, timestep.reward.dtype), xp.zeros(shape, xp.int32))


def no_tally(episode: Episode, masks: bool) -> tuple[Tally]:
    """Nothing counted yet, for each environment."""
    none = (episode.length * 0).astype(np.int32)
    return (Tally(none, none.astype(episode.total.dtype), none, none if masks else None),)


def count(tally: Tally, played: EpisodeStep) -> tuple[Tally]:
    """Count one step of each environment."""
    xp = np if isinstance(played.done, np.ndarray) else jnp
    return (
        Tally(
            tally.episodes + played.done,
            tally.return_sum + xp.where(played.done, played.total, 0),
            tally.length_sum + xp.where(played.done, played.length, 0),
            None if played.valid is None else tally.steps + played.valid,
        ),
    )


def total(tally: Tally, steps: int) -> tuple[Tally]:
    """Sum over environments after an unroll of `steps`."""
    if tally.steps is None:
        tally = tally._replace(steps=jnp.full(tally.episodes.shape, steps, jnp.int32))
    return (jax.tree.map(jnp.sum, tally),)
