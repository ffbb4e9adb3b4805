"""Calls of host environments: what their own code raises is named, with the step in which it was raised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tessera.errors import RAISED_BY_USERS, EnvironmentFailed, Signalled

Value = TypeVar("Value")


def call_environment(env: str, when: Callable[[], str], function: Callable[..., Value], *arguments: Any) -> Value:
    """Call a function of an environment; an exception in it becomes an error that names it, and says `when`.

    An exit counts as one: the process is not the environment's to end.
    """
    try:
        return function(*arguments)
    except Signalled:
        raise
    except RAISED_BY_USERS as error:
        message = " ".join(str(error).split())[:200] or "no message"
        raise EnvironmentFailed(f"environment {env} raised {type(error).__name__} ({message}) {when()}") from error
