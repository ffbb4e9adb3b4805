"""Wrappers by name: options that fit every environment, whatever its family.

They are put around an environment in the order in which they are written: `?repeat=2&stack=4` stacks what is seen
after each second step. This module imports no JAX.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from tessera.envs.base import Environment, HostEnvironment
from tessera.envs.wrappers.host import HostWrapper, RepeatingHost, TransformedHost, stepped_alone
from tessera.envs.wrappers.observations import Hide, Normalise, Scale, Stack
from tessera.envs.wrappers.own import wrap_each
from tessera.envs.wrappers.steps import ClipReward, Sticky, TimeLimit, refuse_masks
from tessera.envs.wrappers.transform import Transform
from tessera.errors import TesseraError


def wrap_by_name(env: Environment, wrapper: str, value: Any) -> Environment:
    """Put the wrapper of that name around an environment; the value false leaves it out."""
    return env if value is False else WRAPPERS[wrapper](env, value)


def words_of(env: Environment) -> tuple[str, ...]:
    """What the wrappers around an environment do, from the innermost on."""
    words = getattr(env, "wrapper_words", None)
    inner = getattr(env, "env", None)
    return () if words is None else (*(() if inner is None else words_of(inner)), words)


def _transformed(make: Callable[..., Transform]) -> Callable[[Environment, Any], Environment]:
    """A wrapper that is a transform, made of the environment and a value."""

    def wrap(env: Environment, value: Any) -> Environment:
        transform = make(env, value)
        if isinstance(env, HostEnvironment):
            return TransformedHost(stepped_alone(env, "time_limit") if transform.cuts else env, transform)
        from tessera.envs.wrappers.device import TransformedDevice  # with JAX

        return TransformedDevice(env, transform)

    return wrap


def _switch(wrapper: str, kind: Callable[[Environment], Transform]) -> Callable[[Environment, Any], Transform]:
    """A transform that is only named, without a value."""

    def make(env: Environment, value: Any) -> Transform:
        if value is not True:
            raise TesseraError(f"{wrapper}={value}: {wrapper} takes no value; write ?{wrapper}")
        return kind(env)

    return make


def _repeat(env: Environment, times: Any) -> Environment:
    if isinstance(times, bool) or not isinstance(times, int) or times < 1:
        raise TesseraError(f"repeat={times}: give how often each action is played, as in repeat=2")
    refuse_masks("repeat", env)
    words = f"each action played {times} times"
    wrapped: Any
    if isinstance(env, HostEnvironment):
        wrapped = RepeatingHost(stepped_alone(env, "repeat"), times, words)
    else:
        from tessera.envs.wrappers.device import RepeatingDevice  # with JAX

        wrapped = RepeatingDevice(env, times, words)
    wrapped.spec = dataclasses.replace(env.spec, time_limit=-(-env.spec.time_limit // times))
    return wrapped


def _opponent(env: Environment, value: Any) -> Environment:
    from tessera.envs.wrappers.opponent import against  # with JAX

    return against(env, value)


WRAPPERS: dict[str, Callable[[Environment, Any], Environment]] = {
    "hide": _transformed(Hide),
    "stack": _transformed(Stack),
    "scale": _transformed(_switch("scale", Scale)),
    "normalise": _transformed(_switch("normalise", Normalise)),
    "clip_reward": _transformed(ClipReward),
    "time_limit": _transformed(TimeLimit),
    "sticky": _transformed(Sticky),
    "repeat": _repeat,
    "opponent": _opponent,
    "wrap": wrap_each,
}
"""Name -> the function that puts it around an environment; docs/environments.md has the table of values."""

__all__ = ["WRAPPERS", "HostWrapper", "words_of", "wrap_by_name"]
