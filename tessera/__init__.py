"""Tessera: write an RL algorithm once, as pure functions; run it anywhere, by naming a distribution policy."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tessera.agent.agent import Agent, load
    from tessera.algorithms.a2c import A2C
    from tessera.algorithms.alphazero import AlphaZero
    from tessera.algorithms.c51 import C51
    from tessera.algorithms.contract import Algorithm, Clock, Feedback, Part, Schedule, State, Step, Transition, View
    from tessera.algorithms.dpg import DPG
    from tessera.algorithms.dqn import DQN
    from tessera.algorithms.es import ES
    from tessera.algorithms.impala import IMPALA
    from tessera.algorithms.mappo import MAPPO
    from tessera.algorithms.ppo import PPO
    from tessera.algorithms.pqn import PQN
    from tessera.algorithms.q_learning import QLearning
    from tessera.algorithms.qr_dqn import QRDQN
    from tessera.algorithms.r2d2 import R2D2
    from tessera.algorithms.sac import SAC
    from tessera.api import Result, SeedResults, compare, evaluate_run, evaluate_runs, map_reduce, train
    from tessera.envs.base import (
        Box,
        DeviceEnvironment,
        Discrete,
        HostEnvironment,
        HostVector,
        MultiDiscrete,
        Spec,
        Timestep,
    )
    from tessera.envs.checks import EnvironmentCheck, check_env
    from tessera.errors import TesseraError
    from tessera.graph.policy import Cut, Fragment, Policy
    from tessera.presets import Preset, preset
    from tessera.runs.callbacks import Callback, CheckpointEvent, EndEvent, EvaluationEvent, UpdateEvent
    from tessera.runs.population import Population
    from tessera.stores.base import Experience, Sample
    from tessera.stores.queue import Queue
    from tessera.stores.replay import Replay

__version__ = "0.1.0"

__all__ = [
    "A2C",
    "C51",
    "DPG",
    "DQN",
    "ES",
    "IMPALA",
    "MAPPO",
    "PPO",
    "PQN",
    "QRDQN",
    "R2D2",
    "SAC",
    "Agent",
    "Algorithm",
    "AlphaZero",
    "Box",
    "Callback",
    "CheckpointEvent",
    "Clock",
    "Cut",
    "DeviceEnvironment",
    "Discrete",
    "EndEvent",
    "EnvironmentCheck",
    "EvaluationEvent",
    "Experience",
    "Feedback",
    "Fragment",
    "HostEnvironment",
    "HostVector",
    "MultiDiscrete",
    "Part",
    "Policy",
    "Population",
    "Preset",
    "QLearning",
    "Queue",
    "Replay",
    "Result",
    "Sample",
    "Schedule",
    "SeedResults",
    "Spec",
    "State",
    "Step",
    "TesseraError",
    "Timestep",
    "Transition",
    "UpdateEvent",
    "View",
    "__version__",
    "check_env",
    "compare",
    "evaluate_run",
    "evaluate_runs",
    "load",
    "map_reduce",
    "preset",
    "train",
]

_MODULES = {
    "tessera.agent.agent": ("Agent", "load"),
    "tessera.algorithms.a2c": ("A2C",),
    "tessera.algorithms.alphazero": ("AlphaZero",),
    "tessera.algorithms.c51": ("C51",),
    "tessera.algorithms.contract": (
        "Algorithm", "Clock", "Feedback", "Part", "Schedule", "State", "Step", "Transition", "View",
    ),
    "tessera.algorithms.dpg": ("DPG",),
    "tessera.algorithms.dqn": ("DQN",),
    "tessera.algorithms.es": ("ES",),
    "tessera.algorithms.impala": ("IMPALA",),
    "tessera.algorithms.mappo": ("MAPPO",),
    "tessera.algorithms.ppo": ("PPO",),
    "tessera.algorithms.pqn": ("PQN",),
    "tessera.algorithms.q_learning": ("QLearning",),
    "tessera.algorithms.qr_dqn": ("QRDQN",),
    "tessera.algorithms.r2d2": ("R2D2",),
    "tessera.algorithms.sac": ("SAC",),
    "tessera.api": ("Result", "SeedResults", "compare", "evaluate_run", "evaluate_runs", "map_reduce", "train"),
    "tessera.envs.base": (
        "Box", "DeviceEnvironment", "Discrete", "HostEnvironment", "HostVector", "MultiDiscrete", "Spec", "Timestep",
    ),
    "tessera.envs.checks": ("EnvironmentCheck", "check_env"),
    "tessera.errors": ("TesseraError",),
    "tessera.graph.policy": ("Cut", "Fragment", "Policy"),
    "tessera.presets": ("Preset", "preset"),
    "tessera.runs.callbacks": ("Callback", "CheckpointEvent", "EndEvent", "EvaluationEvent", "UpdateEvent"),
    "tessera.runs.population": ("Population",),
    "tessera.stores.base": ("Experience", "Sample"),
    "tessera.stores.queue": ("Queue",),
    "tessera.stores.replay": ("Replay",),
}  # fmt: skip
"""Module -> public names in it; the imports above show type checkers the same."""
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import tessera` costs next to nothing."""
    if name not in _HOME:
        raise AttributeError(f"module 'tessera' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
