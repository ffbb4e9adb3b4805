"""The algorithm and environment of a run, rebuilt from its configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tessera.algorithms.contract import Algorithm
from tessera.envs import make as make_env
from tessera.envs import renamed
from tessera.envs.base import Environment
from tessera.evaluation.trust import Trust, trusted_algorithm, trusted_environment, trusted_networks
from tessera.support.fields import options_of

NEEDED = ("algorithm", "env", "envs", "precision")
"""Entries of config.json that `rebuild` reads."""


def rebuild(config: dict[str, Any], trust: Trust = False, env: Any = None) -> tuple[Algorithm, Environment]:
    """The algorithm, bound to its environment, and the environment: `env`, or the one that the configuration names.

    `trust` says which names may be imported.
    """
    kind = trusted_algorithm(str(config["algorithm"]["class"]), trust)
    trusted_networks(config["algorithm"], trust)
    if env is None:
        made = trusted_environment(config["env"], config["precision"], trust)
    else:
        made = make_env(env, config["precision"])
        if not isinstance(env, str):  # an object goes by the name that the run has for it
            made = renamed(made, config["env"])
    tuned = tuple(config.get("population", {}).get("tune", ()))
    return replace(_make(kind, config["algorithm"]).bound_to(made), envs=config.get("envs") or 1, tuned=tuned), made


def _make(kind: type[Algorithm], config: dict[str, Any]) -> Algorithm:
    names = {f.name for f in options_of(kind)}
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in config.items() if k in names}
    return kind(**values)
