"""Tessera: write an RL algorithm once, as pure functions; run it anywhere, by naming a distribution policy."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "A2C": "tessera.algorithms.a2c",
    "DPG": "tessera.algorithms.dpg",
    "DQN": "tessera.algorithms.dqn",
    "ES": "tessera.algorithms.es",
    "IMPALA": "tessera.algorithms.impala",
    "MAPPO": "tessera.algorithms.mappo",
    "PPO": "tessera.algorithms.ppo",
    "QLearning": "tessera.algorithms.q_learning",
    "Algorithm": "tessera.algorithms.base",
    "Clock": "tessera.algorithms.base",
    "Feedback": "tessera.algorithms.base",
    "Schedule": "tessera.algorithms.base",
    "State": "tessera.algorithms.base",
    "Transition": "tessera.algorithms.base",
    "View": "tessera.algorithms.base",
    "Box": "tessera.envs.base",
    "DeviceEnvironment": "tessera.envs.base",
    "Discrete": "tessera.envs.base",
    "HostEnvironment": "tessera.envs.base",
    "HostVector": "tessera.envs.base",
    "MultiDiscrete": "tessera.envs.base",
    "Spec": "tessera.envs.base",
    "Timestep": "tessera.envs.base",
    "Cut": "tessera.graph.policy",
    "Fragment": "tessera.graph.policy",
    "Policy": "tessera.graph.policy",
    "Experience": "tessera.stores.base",
    "Sample": "tessera.stores.base",
    "Queue": "tessera.stores.queue",
    "Replay": "tessera.stores.replay",
    "TesseraError": "tessera.errors",
    "Result": "tessera.train",
    "train": "tessera.train",
    "evaluate_run": "tessera.runs",
    "evaluate_runs": "tessera.runs",
    "map_reduce": "tessera.mapping",
}

__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> Any:
    """Import public names when they are first used, so that `import tessera` costs next to nothing."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tessera' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Keeps `tessera.train` the function: importing the module of the same name would put the module there."""

    @property
    def train(self) -> Any:
        """Train an algorithm; see `tessera.train.train`."""
        return importlib.import_module("tessera.train").train

    @train.setter
    def train(self, module: ModuleType) -> None:
        """Let the import system think that it has set the module."""


sys.modules[__name__].__class__ = _Package
