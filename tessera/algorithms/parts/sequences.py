"""Sequences of steps: the rows that recurrent networks learn from in a replay."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from tessera.algorithms.contract import Transition
from tessera.maths.statistics import Moments
from tessera.networks import Carry


class SequenceStatistics(NamedTuple):
    """Running moments; () for what is not kept."""

    observation: Moments | tuple[()] = ()
    """Of the observations that were drawn, where these are normalised."""
    loss: Any = ()
    """Of the losses, where outliers are dropped."""


class SequenceExtras(NamedTuple):
    """What acting records at each step."""

    first: jax.Array
    """Whether an episode begins at this step's observation."""
    carry: Carry
    """State of the core before the step."""


class Sequence(NamedTuple):
    """Consecutive steps of one environment as they are stored, [T, ...]; episodes may end and begin among them."""

    observation: jax.Array
    action: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    next_observation: jax.Array
    """The observation that each step led to, before any autoreset."""
    first: jax.Array
    """Whether an episode begins at the observation, so that the core is reset."""
    valid: jax.Array
    """False for steps that were not played."""
    start: Carry
    """State of the core before the first step, without the axis of time."""
    next_legal: Any = None
    """Which actions are allowed at the next observation; None if all always are."""


def sequence_of(steps: Transition) -> Sequence:
    """Make a sequence of steps with `SequenceExtras`; the core is reset after steps that were not played."""
    first = steps.extras.first.at[1:].set(steps.extras.first[1:] | ~steps.valid[:-1])
    start = jax.tree.map(lambda x: x[0], steps.extras.carry)
    t = steps
    return Sequence(
        t.observation, t.action, t.reward, t.terminated, t.truncated, t.next_observation, first, t.valid, start,
        t.next_legal,
    )  # fmt: skip


def time_major(rows: Sequence) -> Sequence:
    """Turn rows of sequences, [B, T, ...], into [T, B, ...]."""
    return jax.tree.map(lambda x: x.swapaxes(0, 1), rows._replace(start=()))._replace(start=rows.start)
