"""What actor-critic algorithms pass from acting to learning."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from tessera.maths.statistics import Moments


class Statistics(NamedTuple):
    """Running moments; () for what is not normalised."""

    observation: Moments | tuple[()] = ()
    returns: Moments | tuple[()] = ()


class Extras(NamedTuple):
    """What acting leaves behind for learning."""

    log_prob: jax.Array
    discounted: Any = ()
    """Discounted sum of rewards so far; what rewards are scaled by."""


class Batch(NamedTuple):
    """Rows to learn from."""

    observation: jax.Array
    action: jax.Array
    log_prob: jax.Array
    advantage: jax.Array
    target: jax.Array
    valid: jax.Array | None


class Summary(NamedTuple):
    """What each group tells all others about its batch."""

    advantage: Moments
    statistics: Statistics
    valid: jax.Array
