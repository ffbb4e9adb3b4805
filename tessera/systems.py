"""Systems of the literature: named pairs of an algorithm, with its settings, and a distribution policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tessera import algorithms
from tessera.algorithms.contract import Algorithm
from tessera.errors import TesseraError, unknown_name


@dataclass(frozen=True)
class System:
    """One entry of `tessera systems`."""

    algorithm: str
    policy: str
    """As for `--policy`; empty: chosen, since the system is the algorithm alone."""
    paper: str
    summary: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the algorithm that differ from its defaults."""
    population: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the `Population` that it trains, if that is what it is."""


SYSTEMS: dict[str, System] = {
    "a2c": System("a2c", "", "Mnih et al. 2016; OpenAI 2017", "synchronous actor-critic: one gradient from all actors"),
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
        "a2c", "central:mode=async", "Mnih et al. 2016", "A3C with a recurrent network",
        {"normalise_advantages": False, "core": "lstm"},
    ),
    "alphazero": System(
        "alphazero", "single_learner_coarse:mode=async", "Silver et al. 2017, 2018",
        "self-play actors search every move; one learner draws positions from a replay, and nobody waits",
    ),
    "apex_dpg": System(
        "dpg", "distributed_replay:mode=async,stores=2,publish=4", "Horgan et al. 2018",
        "Ape-X for continuous actions: deterministic policy gradient",
        {"n_step": 5, "prioritised": True, "actor_priorities": True, "importance_end": 0.4},
    ),
    "apex_dqn": System(
        "dqn", "distributed_replay:mode=async,stores=2,publish=4", "Horgan et al. 2018",
        "each actor explores at its own rate and sets first priorities; one learner draws from sharded replay",
        {"dueling": True, "n_step": 3, "prioritised": True, "actor_priorities": True, "importance_end": 0.4,
         "exploration": "ladder"},
    ),
    "async_nstep_q": System(
        "q_learning", "central:mode=async", "Mnih et al. 2016",
        "actor-learners without a replay: n-step Q, gradients applied as they arrive", {"kind": "n_step"},
    ),
    "async_q": System(
        "q_learning", "central:mode=async", "Mnih et al. 2016",
        "actor-learners without a replay: one-step Q, gradients applied as they arrive",
    ),
    "async_sarsa": System(
        "q_learning", "central:mode=async", "Mnih et al. 2016",
        "actor-learners without a replay: one-step Sarsa, gradients applied as they arrive", {"kind": "sarsa"},
    ),
    "c51": System("c51", "", "Bellemare et al. 2017", "DQN that learns the distribution of returns, on fixed atoms"),
    "ddpg": System(
        "dpg", "", "Lillicrap et al. 2016", "deterministic policy gradient with one critic and a replay",
        {"twin": False, "actor_delay": 1, "smoothing": 0.0},
    ),
    "downpour": System(
        "a2c", "central:mode=async,workers=2,shards=2,model=2,push=2,pull=2", "Dean et al. 2012",
        "DistBelief: replicas whose layers are cut over devices push to a sharded server and pull from it at intervals",
        {"normalise_advantages": False, "widths": (128, 128)},
    ),
    "dpg": System("dpg", "", "Lillicrap et al. 2016; Fujimoto et al. 2018", "deterministic policy gradient and replay"),
    "dqn": System("dqn", "", "Mnih et al. 2013, 2015", "deep Q-learning: one player, replay, a target network"),
    "elf": System(
        "alphazero", "fused", "Tian et al. 2017, 2019",
        "thousands of games in one program with the learner: search, replay and updates on one device",
    ),
    "es": System(
        "es", "", "Salimans et al. 2017", "evolution strategies: workers exchange seeds and scores",
    ),
    "gorila": System(
        "dqn", "gorila:actors=2,stores=2,learners=2,shards=2,lag=20", "Nair et al. 2015",
        "actors, replay shards, learners and a sharded server, all at their own pace",
        {"double": False, "n_step": 1, "outliers": 3.0, "batch": 256, "max_gradient_norm": 1.0},  # 128 a learner
    ),
    "gorila_bundled": System(
        "dqn", "gorila:bundled=true,actors=2,shards=2,lag=20", "Nair et al. 2015",
        "Gorila as in the paper: an actor, its replay and its learner in one process, around a sharded server",
        {"double": False, "n_step": 1, "outliers": 3.0, "batch": 256},  # 128 for each of the two
    ),
    "impala": System(
        "impala", "single_learner_coarse:mode=async", "Espeholt et al. 2018",
        "actors never wait; one learner corrects their experience by V-trace",
    ),
    "impala_lstm": System(
        "impala", "single_learner_coarse:mode=async", "Espeholt et al. 2018", "IMPALA with a recurrent network",
        {"core": "lstm"},
    ),
    "impala_multi": System(
        "impala", "multi_learner_coarse:mode=async", "Espeholt et al. 2018",
        "IMPALA with several learners that average their gradients",
    ),
    "mappo": System("mappo", "", "Yu et al. 2022", "PPO for several agents, with values of what all of them observe"),
    "openai_five": System(
        "ppo", "split_inference:learners=2", "Berner et al. 2019",
        "rollout workers, forward-pass workers, and optimisers with all-reduce; PPO with an LSTM",
        {"core": "lstm"},
    ),
    "pbt": System(
        "ppo", "", "Jaderberg et al. 2017",
        "a population of PPOs that tunes hyper-parameters as it trains: the worse go on from copies of the better",
        population={"size": 8, "tune": {"learning_rate": "log:1e-5:1e-1", "entropy_coefficient": "log:1e-4:1e-1"}},
    ),
    "ppo": System("ppo", "", "Schulman et al. 2017", "proximal policy optimisation"),
    "ppo_es": System(
        "ppo", "", "Liang et al. 2018",
        "an evolution strategy around PPO: members train near a mean of params, which moves to the better half",
        population={"size": 8, "sigma": 0.02},
    ),
    "ppo_lstm": System("ppo", "", "Schulman et al. 2017", "PPO with a recurrent network", {"core": "lstm"}),
    "pqn": System("pqn", "", "Gallici et al. 2024", "Q-learning from many environments at once, without a replay"),
    "q_learning": System("q_learning", "", "Mnih et al. 2016", "Q-learning without a replay, in one process"),
    "qr_dqn": System("qr_dqn", "", "Dabney et al. 2018", "DQN that learns quantiles of the distribution of returns"),
    "r2d2": System(
        "r2d2", "distributed_replay:mode=async,stores=2,publish=4", "Kapturowski et al. 2019",
        "Ape-X with a recurrent network: actors send sequences with the state they remembered",
        {"dueling": True, "actor_priorities": True},
    ),
    "rainbow": System(
        "c51", "", "Hessel et al. 2018", "all of DQN's extensions: C51, double, dueling, prioritised, n-step, noisy",
        {"n_step": 3, "double": True, "dueling": True, "prioritised": True, "noisy": True},
    ),
    "sac": System("sac", "", "Haarnoja et al. 2018", "soft actor-critic: entropy counts, at a learned temperature"),
    "seed_rl": System(
        "impala", "single_learner_fine:wait=0.001", "Espeholt et al. 2020",
        "environments only step; the learner acts for those that are ready, in one batch",
    ),
    "td3": System(
        "dpg", "", "Fujimoto et al. 2018", "deterministic policy gradient with two critics and a delayed actor",
        {"unroll": 1, "batch": 256, "learning_rate": 3e-4, "anneal": False},
    ),
}  # fmt: skip


TASKS = {"dpg": "gymnax:Pendulum-v1", "sac": "gymnax:Pendulum-v1", "mappo": "jaxmarl:MPE_simple_spread_v3",
         "alphazero": "pgx:connect_four"}  # fmt: skip
"""Environments for algorithms that cannot play CartPole."""


NEAREST = {
    "acer": "impala", "acktr": "a2c", "apex": "apex_dqn", "ars": "es", "cma_es": "es", "d4pg": "apex_dpg",
    "ddqn": "dqn", "double_dqn": "dqn", "drqn": "r2d2", "dueling_dqn": "dqn", "fqf": "qr_dqn", "ippo": "mappo",
    "iqn": "qr_dqn", "maddpg": "mappo", "ppg": "ppo", "ppo2": "ppo", "qmix": "mappo", "qr-dqn": "qr_dqn",
    "recurrent_dqn": "r2d2", "recurrent_ppo": "ppo_lstm", "redq": "sac", "reinforce": "a2c", "sarsa": "async_sarsa",
    "tqc": "sac", "trpo": "ppo", "vdn": "mappo", "vpg": "a2c",
}  # fmt: skip
"""Names that people type -> what does the same job here."""


def find(name: str) -> tuple[type[Algorithm], System | None]:
    """What `tessera train NAME` trains: (algorithm, system); py:module.Class is an algorithm without a system."""
    system = SYSTEMS.get(name.lower())
    if system is not None:
        return algorithms.get(system.algorithm), system
    if name.startswith("py:") or name.lower() in algorithms.ALGORITHMS:
        return algorithms.get(name), None
    if name.lower() in NEAREST:
        near = NEAREST[name.lower()]
        raise TesseraError(f"there is no {name} here; {near} does the same job: {SYSTEMS[near].summary}")
    raise unknown_name("system or algorithm", name, [*SYSTEMS, *algorithms.ALGORITHMS])


def name_in(text: str) -> str | None:
    """The system that `tessera train TEXT` names; None if that is an algorithm alone."""
    return text.lower() if text.lower() in SYSTEMS else None


def command(name: str) -> str:
    """A command that trains a system."""
    return f"tessera train {name} {TASKS.get(SYSTEMS[name].algorithm, 'gymnax:CartPole-v1')}"
