"""Is an environment sound? `check_env` plays it and says all; `refuse_broken` is its cheap form before training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tessera.envs import make
from tessera.envs.base import Box, DeviceEnvironment, Discrete, Environment, HostEnvironment
from tessera.envs.checks.findings import EnvironmentCheck, Finding, check_length, shown
from tessera.envs.wrappers import HostWrapper
from tessera.errors import TesseraError

__all__ = ["EnvironmentCheck", "Finding", "check_env", "refuse_broken"]


def check_env(env: Any, *, steps: int = 1000, seed: int = 0) -> EnvironmentCheck:
    """Play random actions in an environment and say what is wrong with it; nothing is trained.

    Args:
        env: a name, a factory, a class or an environment, as for `train`.
        steps: steps to play.
        seed: seed of the environment and of the actions.
    """
    if steps < 1:
        raise TesseraError(f"{steps} steps: at least one is needed")
    try:
        environment = make(env)
    except TesseraError as error:
        if isinstance(env, str) and not env.startswith("py:"):
            raise  # a name that makes nothing is no finding
        return EnvironmentCheck(str(getattr(env, "__name__", env)), [Finding(str(error))])
    report = EnvironmentCheck(environment.name, spaces=_spaces(environment))
    try:
        refuse_broken(environment)
    except TesseraError as error:
        report.error(str(error))
        return report
    if isinstance(environment, HostEnvironment):
        _play_host(environment, report, steps, seed)
    else:
        from tessera.envs.checks.device import play_device  # with JAX

        play_device(environment, report, steps, seed)
    return report


def refuse_broken(env: Environment) -> None:
    """Refuse an environment that cannot be trained in, with one sentence; it costs a few steps or a trace."""
    if isinstance(env, HostEnvironment):
        with _single(_innermost(env)) as (one, checks):
            if checks is not None:
                checks[0](one, env.name)
        return
    from tessera.envs.checks.device import refuse_broken_device  # with JAX

    refuse_broken_device(env)


def _play_host(env: HostEnvironment, report: EnvironmentCheck, steps: int, seed: int) -> None:
    inner, ended, limit = _innermost(env), None, env.spec.time_limit
    with _single(inner) as (one, checks):
        if checks is not None:
            ended = checks[1](one, report, steps, seed)
    if report.ok:
        from tessera.envs.checks.vector import play_vector

        together = play_vector(env, report, steps, seed)
        if ended is None or inner is not env:  # wrappers may change when episodes end
            ended, limit = together, limit + 1 if limit and env.masks else limit  # with the step of a reset
    if report.ok and ended is not None:
        check_length(report, limit, ended)


def _innermost(env: HostEnvironment) -> HostEnvironment:
    """The environment without our wrappers."""
    return _innermost(env.env) if isinstance(env, HostWrapper) else env


@contextlib.contextmanager
def _single(env: HostEnvironment) -> Iterator[tuple[Any, Any]]:
    """One environment as its library makes it, and the checks for its kind: (cheap, thorough), or None."""
    one = env.single()
    try:
        yield one, None if one is None else _checks(one)
    finally:
        if one is not None:
            one.close()


def _checks(one: Any) -> tuple[Any, Any]:
    if hasattr(one, "agent_iter"):
        from tessera.envs.checks.pettingzoo_turns import play_turns, refuse_broken_turns

        return refuse_broken_turns, play_turns
    if hasattr(one, "possible_agents"):
        from tessera.envs.checks.pettingzoo import play_parallel, refuse_broken_parallel

        return refuse_broken_parallel, play_parallel
    from tessera.envs.checks.gymnasium import play_gymnasium, refuse_broken_gymnasium

    return refuse_broken_gymnasium, play_gymnasium


def _spaces(env: DeviceEnvironment | HostEnvironment) -> str:
    """What is observed, and the actions, in words."""
    spec, actions = env.spec, env.spec.actions
    if isinstance(actions, Discrete):
        takes = f"{actions.n} actions"
    elif isinstance(actions, Box):
        takes = f"real actions {list(actions.shape)}"
    else:
        takes = f"{len(actions.choices)} choices at once"
    agents = f", {spec.agents} agents" if spec.agents else ", 2 players who take turns" if spec.players > 1 else ""
    parts = (f"{path} {shown(x.shape, x.dtype)}".strip() for path, x in spec.parts.items())
    return f"observations {', '.join(parts)}, {takes}{agents}"
