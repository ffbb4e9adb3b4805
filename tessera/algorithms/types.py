"""What flows between an algorithm's functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Schedule:
    """How often each operator runs within one update."""

    unroll: int
    """Steps of one unroll: what each environment plays per update, or per round of it."""
    draws: int = 1
    """Draws from the store per update."""
    epochs: int = 1
    """Passes over one draw."""
    minibatches: int = 1
    """Gradients per pass."""
    warmup: int = 0
    """Unrolls stored before the first draw."""
    episodic: bool = False
    """Whether every environment starts afresh before each unroll."""
    rounds: int = 1
    """Unrolls that each environment plays per update, one after the other and each made `ready` for by itself."""

    @property
    def steps(self) -> int:
        """Steps that each environment plays per update."""
        return self.unroll * self.rounds

    @property
    def applies(self) -> int:
        """Gradients applied per update."""
        return self.draws * self.epochs * self.minibatches


class Clock(NamedTuple):
    """Global counters that travel with params, so that no schedule runs on a replica's own clock."""

    applies: jax.Array
    horizon: jax.Array
    """Gradients that the whole run will apply."""

    @property
    def progress(self) -> jax.Array:
        """How much of the run is over, from 0 to 1."""
        return jnp.minimum(self.applies / jnp.maximum(self.horizon, 1), 1.0)


class State(NamedTuple):
    """What `apply` owns. All but `statistics` and `clock` is element-wise in the params."""

    params: Any
    optimizer: Any
    target: Any = ()
    """A slow copy of the params, or ()."""
    statistics: Any = ()
    """Running moments (observation and reward normalisers), or ()."""
    clock: Any = None
    """Kept by the framework."""


class View(NamedTuple):
    """What is published of the state: everything but the optimiser's. `act` sees it without `target`."""

    params: Any
    target: Any
    statistics: Any
    clock: Clock


class Transition(NamedTuple):
    """One step of one environment as `act` records it; a trajectory is the same with a leading time axis."""

    observation: Any
    action: Any
    extras: Any
    """Whatever `act` wants to remember: log-probabilities, say."""
    reward: Any
    terminated: Any
    truncated: Any
    next_observation: Any
    """What the step led to, before any autoreset."""
    valid: Any = None
    """False on reset steps, where nothing was played; None if the environment has none."""
    version: Any = None
    """Gradients that had been applied to the params which chose this action; set by the framework."""
    alive: Any = None
    """[agents] which of several agents go on after the step; None if there is one, or if none ever drops out."""


class Feedback(NamedTuple):
    """What a gradient tells besides itself."""

    metrics: dict[str, jax.Array]
    """Scalars, means over rows."""
    priorities: jax.Array | None = None
    """[rows] new priorities, for stores that keep them."""
