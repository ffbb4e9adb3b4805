"""The algorithm and environment of a run, rebuilt from its configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tessera.algorithms.contract import Algorithm
from tessera.envs import make as make_env
from tessera.envs.base import Environment
from tessera.errors import TesseraError
from tessera.support.fields import options_of
from tessera.support.imports import import_again

NEEDED = ("algorithm", "env", "envs", "precision")
"""Entries of config.json that `rebuild` reads."""


def rebuild(config: dict[str, Any]) -> tuple[Algorithm, Environment]:
    """The algorithm, bound to its environment, and the environment."""
    env = _environment(config["env"], config["precision"])
    return replace(_algorithm(config["algorithm"]).bind(env.spec), envs=config.get("envs") or 1), env


def _environment(name: str, precision: str) -> Environment:
    if ":" in name:
        return make_env(name, precision)
    try:  # a class or factory that was passed to tessera.train, by the name of its definition
        return make_env(f"py:{name}", precision)
    except TesseraError as error:
        raise TesseraError(
            f"the run's environment {name!r} was given as an object and cannot be made again by that name ({error}): "
            "name it py:module.Class in tessera.train"
        ) from error


def _algorithm(config: dict[str, Any]) -> Algorithm:
    cls = import_again(config["class"], f"the run's algorithm {config['class']} cannot be imported")
    if not (isinstance(cls, type) and issubclass(cls, Algorithm)):
        raise TesseraError(f"the run's algorithm {config['class']} is not an Algorithm: config.json is damaged")
    names = {f.name for f in options_of(cls)}
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in config.items() if k in names}
    return cls(**values)
