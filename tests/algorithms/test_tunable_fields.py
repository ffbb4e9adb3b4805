"""A field that is marked as tunable can be an array: the program of an update is traced with it, and depends on it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.interpreters import partial_eval

import tessera
from tessera.algorithms.contract import Algorithm
from tessera.engines.replica.replica import make_training
from tessera.engines.replica.snapshots import with_tuned
from tessera.planning.prepare import prepare_plan
from tessera.program.compile import merge_segments
from tessera.program.initial import initial_slots
from tessera.program.interpreter import run_to_end
from tessera.program.project import project
from tessera.support.fields import tunable_fields

CARTPOLE, PENDULUM = "gymnax:CartPole-v1", "gymnax:Pendulum-v1"
SMALL: dict[str, Any] = {"widths": (4,)}
REPLAY: dict[str, Any] = {**SMALL, "capacity": 64, "batch": 8, "warmup": 1}
ALGORITHMS: dict[str, tuple[Algorithm, str]] = {
    "a2c": (tessera.A2C(**SMALL, unroll=2), CARTPOLE),
    "alphazero": (tessera.AlphaZero(blocks=1, channels=4, simulations=2, unroll=2), "pgx:tic_tac_toe"),
    "c51": (tessera.C51(**REPLAY, prioritised=True), CARTPOLE),
    "dpg": (tessera.DPG(**REPLAY, prioritised=True, smoothing=0.2, actor_rate=1e-3), PENDULUM),
    "dqn": (tessera.DQN(**REPLAY, prioritised=True), CARTPOLE),
    "es": (tessera.ES(widths=(4,), unroll=4), CARTPOLE),
    "impala": (tessera.IMPALA(**SMALL, unroll=2), CARTPOLE),
    "mappo": (tessera.MAPPO(widths=(4,), unroll=2, minibatches=1), "jaxmarl:MPE_simple_spread_v3"),
    "ppo": (tessera.PPO(**SMALL, unroll=2, minibatches=1), CARTPOLE),
    "pqn": (tessera.PQN(**SMALL, unroll=2, minibatches=1), CARTPOLE),
    "q_learning": (tessera.QLearning(**SMALL, exploration="anneal"), CARTPOLE),
    "qr_dqn": (tessera.QRDQN(**REPLAY, prioritised=True), CARTPOLE),
    "r2d2": (tessera.R2D2(widths=(4,), core_width=4, capacity=64, batch=8, warmup=1, exploration="anneal"), CARTPOLE),
    "sac": (tessera.SAC(**REPLAY, prioritised=True), PENDULUM),
}


def test_every_algorithm_is_here() -> None:
    everything = (getattr(tessera, name) for name in tessera.__all__)
    classes = {x for x in everything if isinstance(x, type) and issubclass(x, Algorithm)}
    assert {type(algorithm) for algorithm, _ in ALGORITHMS.values()} == classes - {Algorithm}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_update_depends_on_each_tunable_field(name: str) -> None:
    algorithm, env = ALGORITHMS[name]
    fields = tunable_fields(type(algorithm))
    assert "learning_rate" in fields or name in ("dpg", "sac")
    bound, made, plan = prepare_plan(algorithm, env, "fused:devices=1", envs=2, groups=1)
    tuned = {field: float(getattr(bound, field)) for field in fields}
    training = make_training(plan, bound, made)
    slots = initial_slots(training, plan, 0, 0, seed=0, horizon=10, mesh=None)
    programs = [merge_segments(project(nodes, plan, 0)) for nodes in (training.start(), training.updates())]

    def update(values: dict[str, jax.Array]) -> Any:
        held = {**with_tuned(slots, values), "count": 1}
        for program in programs:
            run_to_end(program, held)
        return held["state"].params, held["acting"].params, held["memory"]

    jaxpr = jax.make_jaxpr(update)({field: jnp.asarray(value) for field, value in tuned.items()}).jaxpr
    _, used = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    unused = [field for field, is_used in zip(sorted(tuned), used, strict=True) if not is_used]
    assert unused == []
