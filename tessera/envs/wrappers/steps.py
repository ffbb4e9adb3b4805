"""Transforms of actions, rewards and ends: sticky, clip_reward, time_limit."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from tessera.envs.base import Box, Discrete, Environment, Spec, first_array
from tessera.envs.wrappers.transform import Arrays, Outcome, Transform, pick
from tessera.errors import TesseraError


class Sticky(Transform):
    """With some probability an environment repeats its last action (Machado et al., 2018; MinAtar by default 0.1).

    Each episode begins as if the first of all actions, or zeros, had been played.
    """

    draws = True

    def __init__(self, env: Environment, probability: Any) -> None:
        if not _is_number(probability) or not 0 <= probability < 1:
            raise TesseraError(f"sticky={probability}: give a probability from 0 to below 1, as in sticky=0.1")
        if env.spec.agents:
            raise TesseraError(f"sticky is for one agent, and {env.name} has {env.spec.agents}")
        refuse_masks("sticky", env)
        self._probability = float(probability)
        actions = env.spec.actions
        if isinstance(actions, Box):
            self._first = np.zeros(actions.shape, np.float32)
        else:
            self._first = np.zeros(() if isinstance(actions, Discrete) else (len(actions.choices),), np.int32)
        self.words = f"the last action repeated with probability {probability:g}"

    def start(self, observation: Any, memory: Any, arrays: Arrays) -> tuple[Any, Any]:
        """No action of the episode before sticks."""
        shape = np.shape(first_array(observation))[: arrays.lead]
        return arrays.xp.broadcast_to(self._first, (*shape, *self._first.shape)), observation

    def before(self, memory: Any, action: Any, uniform: Any, arrays: Arrays) -> tuple[Any, Any]:
        """The action that is played is the memory of the next step."""
        action = arrays.xp.asarray(action, memory.dtype)
        played = pick(uniform < self._probability, memory, action, arrays.xp)
        return played, played


class ClipReward(Transform):
    """Rewards within bounds."""

    def __init__(self, env: Environment, bound: Any) -> None:
        bound = 1 if bound is True else bound
        if not _is_number(bound) or not 0 < bound < math.inf:
            raise TesseraError(f"clip_reward={bound}: give the largest reward, above 0, as in clip_reward=1")
        self._bound = float(bound)
        self.words = f"rewards clipped to ±{bound:g}"

    def after(self, memory: Any, outcome: Outcome, arrays: Arrays) -> tuple[Any, Outcome]:
        """Clip the reward."""
        return memory, outcome._replace(reward=arrays.xp.clip(outcome.reward, -self._bound, self._bound))


class TimeLimit(Transform):
    """Truncates episodes that last too long; its memory is the steps of the episode."""

    cuts = True

    def __init__(self, env: Environment, limit: Any) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit < 2**31:
            raise TesseraError(f"time_limit={limit}: give the most steps of an episode, as in time_limit=200")
        self._limit = limit
        self.words = f"episodes truncated at {limit} steps"

    def spec(self, spec: Spec) -> Spec:
        """The shorter of both limits."""
        return dataclasses.replace(spec, time_limit=min(spec.time_limit or self._limit, self._limit))

    def start(self, observation: Any, memory: Any, arrays: Arrays) -> tuple[Any, Any]:
        """No step was played."""
        return arrays.xp.zeros(np.shape(first_array(observation))[: arrays.lead], np.int32), observation

    def after(self, memory: Any, outcome: Outcome, arrays: Arrays) -> tuple[Any, Outcome]:
        """Count the step; what terminates is not truncated."""
        terminated, truncated = (arrays.xp.asarray(x, bool) for x in (outcome.terminated, outcome.truncated))
        steps = memory + 1
        return steps, outcome._replace(truncated=truncated | ((steps >= self._limit) & ~terminated))


def refuse_masks(wrapper: str, env: Environment) -> None:
    """Refuse to play an action again where it may no longer be allowed."""
    if env.spec.restricted:
        raise TesseraError(
            f"{wrapper} plays an action again, and in {env.name} it may not be allowed a second time: leave {wrapper} "
            "out"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
