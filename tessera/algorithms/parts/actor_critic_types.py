"""What actor-critic algorithms pass from acting to learning."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from tessera.maths.distributions import Distribution
from tessera.maths.statistics import Moments


class Statistics(NamedTuple):
    """Running moments; () for what is not normalised."""

    observation: Moments | tuple[()] = ()
    returns: Moments | tuple[()] = ()


class ActorCriticMemory(NamedTuple):
    """What acting carries from step to step; () for what is not needed."""

    discounted: Any = ()
    """Discounted sum of rewards so far; what rewards are scaled by."""
    carry: Any = ()
    """What the network's core remembers."""
    start: Any = ()
    """What it remembered when the unroll began."""


class Extras(NamedTuple):
    """What acting leaves behind for learning; () for what is not needed."""

    log_prob: jax.Array
    discounted: Any = ()
    """Discounted sum of rewards so far; what rewards are scaled by."""
    first: Any = ()
    """Whether an episode begins at this step's observation, for networks with a core."""
    start: Any = ()
    """What the core remembered when the unroll began: one for the whole unroll, [1, ...]."""
    alive: Any = ()
    """[agents] which of several agents acted, where some may drop out."""


class Batch(NamedTuple):
    """Rows to learn from: single steps, or for networks with a core sequences [rows, T, ...]."""

    observation: jax.Array
    action: jax.Array
    log_prob: jax.Array
    advantage: jax.Array
    target: jax.Array
    valid: jax.Array | None
    first: Any = ()
    """[rows, T] whether an episode begins there; for networks with a core."""
    start: Any = ()
    """[rows, ...] what the core remembered before the first step."""


class UnrollEstimates(NamedTuple):
    """What the learner's params make of an unroll, [T, n] each."""

    distribution: Distribution
    values: jax.Array
    next_values: jax.Array
    """Of what each step led to, before any autoreset."""
    rewards: jax.Array
    """As they are learned from: maybe scaled."""


class Summary(NamedTuple):
    """What each group tells all others about its batch."""

    advantage: Moments
    statistics: Statistics
    valid: jax.Array
