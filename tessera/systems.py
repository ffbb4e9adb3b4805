"""Systems of the literature, each a named pair: an algorithm with its settings, and a distribution policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tessera import algorithms
from tessera.algorithms.base import Algorithm
from tessera.errors import unknown_name


@dataclass(frozen=True)
class System:
    """One entry of `tessera systems`."""

    algorithm: str
    policy: str
    """As `--policy` takes it; empty: left to be chosen, since the system is the algorithm in one place."""
    paper: str
    summary: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the algorithm that differ from its own defaults."""


SYSTEMS: dict[str, System] = {
    "a2c": System("a2c", "", "Mnih et al. 2016; OpenAI 2017", "synchronous actor-critic: one gradient of all actors"),
    "a3c": System(
        "a2c", "central:mode=async", "Mnih et al. 2016",
        "actor-learners push gradients to a server, which keeps RMSProp's statistics",
        {"normalise_advantages": False},
    ),
    "a3c_hogwild": System(
        "a2c", "hogwild:carries=state", "Mnih et al. 2016; Niu et al. 2011",
        "actor-learners add to one memory without locks: A3C as it was run on one machine",
        {"normalise_advantages": False},
    ),
    "a3c_lstm": System(
        "a2c", "central:mode=async", "Mnih et al. 2016", "A3C whose network remembers",
        {"normalise_advantages": False, "core": "lstm"},
    ),
    "dqn": System("dqn", "", "Mnih et al. 2013, 2015", "deep Q-learning: one player, replay, a target network"),
    "impala": System(
        "impala", "single_learner_coarse:mode=async", "Espeholt et al. 2018",
        "actors never wait; one learner corrects what they played by V-trace",
    ),
    "impala_lstm": System(
        "impala", "single_learner_coarse:mode=async", "Espeholt et al. 2018", "IMPALA whose network remembers",
        {"core": "lstm"},
    ),
    "impala_multi": System(
        "impala", "multi_learner_coarse:mode=async", "Espeholt et al. 2018",
        "IMPALA with several learners that average their gradients",
    ),
    "mappo": System("mappo", "", "Yu et al. 2022", "PPO for several agents; values are of what all of them see"),
    "openai_five": System(
        "ppo", "split_inference:learners=2", "Berner et al. 2019",
        "rollout workers, forward-pass workers, and optimisers with all-reduce; PPO with an LSTM",
        {"core": "lstm"},
    ),
    "ppo": System("ppo", "", "Schulman et al. 2017", "proximal policy optimisation"),
    "ppo_lstm": System("ppo", "", "Schulman et al. 2017", "PPO whose network remembers", {"core": "lstm"}),
    "seed_rl": System(
        "impala", "single_learner_fine:wait=0.001", "Espeholt et al. 2020",
        "environments only step; the learner acts for whichever are ready, in one batch",
    ),
}  # fmt: skip


def find(name: str) -> tuple[type[Algorithm], System | None]:
    """What `tessera train NAME` trains: a system, or an algorithm alone (py:module.Class)."""
    system = SYSTEMS.get(name.lower())
    if system is not None:
        return algorithms.get(system.algorithm), system
    if name.startswith("py:") or name.lower() in algorithms.ALGORITHMS:
        return algorithms.get(name), None
    raise unknown_name("system or algorithm", name, [*SYSTEMS, *algorithms.ALGORITHMS])


def command(name: str) -> str:
    """One line that runs a system."""
    teams = find(name)[0].teams
    return f"tessera train {name} {'jaxmarl:MPE_simple_spread_v3' if teams else 'gymnax:CartPole-v1'}"
