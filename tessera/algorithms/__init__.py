"""Algorithms: one file each, pure functions, unaware of distribution."""

from __future__ import annotations

import importlib

from tessera.algorithms.contract import Algorithm
from tessera.errors import TesseraError, unknown_name
from tessera.support.imports import import_target

ALGORITHMS: dict[str, str] = {
    "a2c": "A2C",
    "alphazero": "AlphaZero",
    "c51": "C51",
    "dpg": "DPG",
    "dqn": "DQN",
    "es": "ES",
    "impala": "IMPALA",
    "mappo": "MAPPO",
    "ppo": "PPO",
    "pqn": "PQN",
    "q_learning": "QLearning",
    "qr_dqn": "QRDQN",
    "r2d2": "R2D2",
    "sac": "SAC",
}
"""Name on the command line -> class, in the module of the same name."""


def get(name: str) -> type[Algorithm]:
    """Find an algorithm's class by name, or import it: py:module.Class."""
    if name.startswith("py:"):
        cls = import_target(name.removeprefix("py:"))
        if not (isinstance(cls, type) and issubclass(cls, Algorithm)):
            raise TesseraError(f"{name!r} is not an Algorithm: give a frozen dataclass that derives from it")
        return cls
    if name.lower() not in ALGORITHMS:
        raise unknown_name("algorithm", name, ALGORITHMS)
    module = importlib.import_module(f"tessera.algorithms.{name.lower()}")
    return getattr(module, ALGORITHMS[name.lower()])
