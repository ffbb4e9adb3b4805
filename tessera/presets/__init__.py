"""Presets: settings that are known to work for an algorithm on some environments, with where they come from.

They are data: one file for each algorithm, ALGORITHM.toml in this folder, with a table for each preset:

    [minatar]
    environments = ["gymnax:*-MinAtar"]    # ids that `--preset auto` finds it by
    source = "who uses them, or the sweep that found them"
    steps = 10_000_000                     # defaults of --steps, --envs and --lag; each may be left out
    settings = { learning_rate = 5e-3 }    # fields of the algorithm
"""

from __future__ import annotations

import fnmatch
import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from tessera import algorithms
from tessera.algorithms.contract import Algorithm
from tessera.errors import TesseraError, unknown_name

AUTO = "auto"
"""Instead of a name: the preset for the environment."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Settings of one algorithm for some environments."""

    name: str
    algorithm_name: str
    environments: tuple[str, ...]
    """Ids of environments, with * for any text."""
    source: str
    """Who uses these settings, or what found them."""
    steps: int | None = None
    """Environment steps to train for."""
    envs: int | None = None
    """Environments."""
    lag: int | None = None
    """Updates by which acting lags behind."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the algorithm that differ from its defaults."""

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm with these settings."""
        return algorithms.get(self.algorithm_name)(**self.settings)

    def fits(self, env: str) -> bool:
        """Whether it is meant for an environment, whatever options follow its id."""
        name = env.partition("?")[0].removeprefix("gymnasium:")
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.environments)

    def __str__(self) -> str:
        """How a run names it."""
        return f"{self.name} of {self.algorithm_name}: {self.source}"


@functools.cache
def presets_of(algorithm: str) -> dict[str, Preset]:
    """All presets of an algorithm, by name."""
    file = resources.files(__name__) / f"{algorithm}.toml"
    if not algorithm.isidentifier() or not file.is_file():
        return {}
    return {name: _preset(name, algorithm, table) for name, table in tomllib.loads(file.read_text("utf-8")).items()}


def _preset(name: str, algorithm: str, table: dict[str, Any]) -> Preset:
    settings = {key: tuple(x) if isinstance(x, list) else x for key, x in table.pop("settings", {}).items()}
    environments = tuple(table.pop("environments"))
    return Preset(name=name, algorithm_name=algorithm, environments=environments, settings=settings, **table)


def find_preset(algorithm: str, env: str, name: str = AUTO) -> Preset:
    """The preset of that name, or for "auto" the first that is meant for the environment."""
    known = presets_of(algorithm)
    if name != AUTO:
        if name not in known:
            raise unknown_name(f"preset of {algorithm}:", name, [AUTO, *known])
        return known[name]
    fitting = (preset for preset in known.values() if preset.fits(env))
    found = next(fitting, None)
    if found is None:
        others = f"it has {', '.join(known)}: name one of them, or" if known else "it has none:"
        raise TesseraError(f"no preset of {algorithm} is meant for {env}; {others} leave --preset out")
    return found


def preset(algorithm: str, env: str, name: str = AUTO) -> Preset:
    """Settings that are known to work for an algorithm in an environment.

        found = tessera.preset("ppo", "gymnax:Breakout-MinAtar")
        tessera.train(found.algorithm, "gymnax:Breakout-MinAtar", preset=found)

    Args:
        algorithm: the name of an algorithm.
        env: the environment's id.
        name: the name of a preset; "auto": the one that is meant for the environment.
    """
    return find_preset(algorithms.get(algorithm).name, env, name)
