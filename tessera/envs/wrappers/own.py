"""`wrap=module:Class`: Gymnasium wrappers of the user's own, around each single environment."""

from __future__ import annotations

import inspect
from typing import Any

from tessera.envs.base import Environment
from tessera.errors import TesseraError
from tessera.support.imports import import_target


def wrap_each(env: Environment, value: Any) -> Environment:
    """Put one or more wrappers, named module:Class or given as classes, around each environment."""
    inside = getattr(env, "wrapped_in", None)
    if inside is None:
        raise TesseraError(
            f"wrap={name_of(value)} is for single Gymnasium environments without other wrappers: write it before "
            f"those of {env.name}, or leave it out"
        )
    wrapped = inside(tuple(_wrapper_class(one) for one in _each(value)))
    wrapped.wrapper_words = f"wrapped in {', '.join(map(name_of, _each(value)))}"
    return wrapped


def name_of(value: Any) -> str:
    """How wrappers are written in an environment's name."""
    return ",".join(one if isinstance(one, str) else f"{one.__module__}:{one.__qualname__}" for one in _each(value))


def _each(value: Any) -> list[Any]:
    if isinstance(value, str):
        return value.split(",")
    return list(value) if isinstance(value, tuple | list) else [value]


def _wrapper_class(given: Any) -> type:
    import gymnasium  # only here, so that device environments never pay for it

    target = given
    if isinstance(given, str):
        module, colon, name = given.partition(":")
        if not (module and colon and name):
            raise TesseraError(f"wrap={given}: name a Gymnasium wrapper as module:Class")
        target = import_target(f"{module}.{name}")
    if not (isinstance(target, type) and issubclass(target, gymnasium.Wrapper)):
        raise TesseraError(f"wrap={given} is no class that derives from gymnasium.Wrapper: write one around it")
    try:
        inspect.signature(target).bind(None)
    except TypeError as error:
        raise TesseraError(
            f"wrap={given}: a wrapper gets the environment alone, and this one needs more ({error}): derive a class "
            "from it that sets the rest"
        ) from error
    return target
