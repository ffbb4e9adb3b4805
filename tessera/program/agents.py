"""Agents with their own params, dealt to replicas: each replica runs the same program for its agents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np

from tessera.algorithms.contract import FirstParams
from tessera.graph.plan import Plan
from tessera.program.training_program import Training


def own_training(training: Training, plan: Plan, fragment: int, number: int) -> Training:
    """The training that a replica runs: of all agents, or of its own."""
    agents = plan.fragments[fragment].agents
    if not agents:
        return training
    own, first = training.algorithm.only(agents[number]), training.algorithm.first_params
    if first is not None:
        like = jax.eval_shape(lambda key: own.start(own.init(key)), jax.random.key(0))
        parts = zip(first.trees, (like.params, like.statistics), strict=True)
        own = replace(own, first_params=FirstParams(*(cut_agents(whole, mine, number) for whole, mine in parts)))
    return replace(training, algorithm=own)


def join_agents(values: list[Any], like: Any) -> Any:
    """Join the agents of all replicas into a tree like `like`; arrays of the same shape as there are common to all.

    Replicas have equally many agents, in order.
    """

    def leaf(whole: Any, *parts: Any) -> Any:
        axis = _axis(whole, parts[0])
        return parts[0] if axis is None else np.concatenate([np.asarray(p) for p in parts], axis)

    return jax.tree.map(leaf, like, *values)


def cut_agents(value: Any, like: Any, number: int) -> Any:
    """The part of a value that belongs to the agents of replica `number`; `like` is such a part."""

    def leaf(part: Any, whole: Any) -> Any:
        axis = _axis(whole, part)
        if axis is None:
            return whole
        size = part.shape[axis]
        return whole[(slice(None),) * axis + (slice(number * size, (number + 1) * size),)]

    return jax.tree.map(leaf, like, value)


def _axis(whole: Any, part: Any) -> int | None:
    """The axis on which a part is shorter than the whole."""
    return next((k for k, (a, b) in enumerate(zip(whole.shape, part.shape, strict=True)) if a != b), None)
