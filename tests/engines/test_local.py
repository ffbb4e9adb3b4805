"""The local engine: real processes give what one thread gives, resume to the same bits, and refuse what cannot be."""

from __future__ import annotations

import functools
import os
from typing import Any

import jax
import numpy as np
import pytest

from tessera import A2C, DQN, PPO, Cut, Fragment, Policy, TesseraError, policies
from tessera.api import train
from tessera.engines.local import LocalEngine, check_memory
from tessera.engines.serial import SerialEngine
from tessera.planning.prepare import prepare_plan
from tessera.runs.checkpoint import paths

UPDATES = 3
ALGORITHMS = {
    "ppo": PPO(unroll=8, epochs=2, minibatches=2, widths=(8,), learning_rate=0.01, normalise_observations=True),
    "a2c": A2C(unroll=8, widths=(8,), learning_rate=0.01),
    "dqn": DQN(
        unroll=8, draws=2, batch=16, capacity=512, warmup=2, widths=(8,), learning_rate=0.01, target_period=4,
        prioritised=True, n_step=3,
    ),
}  # fmt: skip
UNNAMED = Policy("unnamed", (Fragment("env act", 2), Fragment("store grad", 2), Fragment("apply")))


def run(kind: Any, name: str, policy: Policy, env: str = "gymnax:CartPole-v1") -> Any:
    """The learner's state after a few updates."""
    options: dict[str, Any] = {"envs": 16, "groups": 8, "precision": "f64", "engine": kind.name}
    bound, made, plan = prepare_plan(ALGORITHMS[name], env, policy, **options)
    engine = kind(plan, bound, made, seed=3, horizon=10)
    try:
        engine.start()
        engine.advance(UPDATES)
        return jax.tree.map(np.array, engine.state())
    finally:
        engine.close()


@functools.cache
def expected(name: str) -> Any:
    return run(SerialEngine, name, policies.get("fused", devices=1))


def assert_equal(state: Any, wanted: Any) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9), state, wanted)


SYNC = [
    ("fused:devices=1", "a2c"),
    ("single_learner_coarse", "ppo"),
    ("single_learner_fine", "a2c"),
    ("single_learner_fine:actors=3,wait=0", "a2c"),
    ("multi_learner", "ppo"),
    ("environments", "a2c"),
    ("central:shards=2", "ppo"),
    ("distributed_replay", "dqn"),
    ("gorila:mode=sync", "dqn"),
    ("split_inference", "a2c"),
    ("mirrored", "dqn"),
]
LOCK_STEP = [
    ("single_learner_coarse:mode=async,lag=0", "a2c"),
    ("single_learner_coarse:mode=async,lag=0,take=8", "ppo"),
    ("single_learner_coarse:mode=first,first=2", "ppo"),
    ("central:workers=1,shards=2,mode=async,lag=0", "ppo"),
    ("gorila:lag=0", "dqn"),
    ("decentralised:lag=0", "ppo"),
]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("policy", "name"), [*SYNC, *LOCK_STEP])
def test_processes_give_the_params_of_fused(policy, name):
    assert_equal(run(LocalEngine, name, policies.parse(policy)), expected(name))


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("policy", "name"),
    [(p, n) for p, usual in (*SYNC, *LOCK_STEP) for n in ALGORITHMS if n != usual]
    + [(f"single_learner_{p}:actors={k}", n) for p in ("coarse", "fine") for k in (1, 3) for n in ALGORITHMS],
)
def test_processes_give_the_params_of_fused_for_every_algorithm(policy, name):
    assert_equal(run(LocalEngine, name, policies.parse(policy)), expected(name))


@pytest.mark.usefixtures("x64")
def test_a_colouring_that_nobody_named_gives_the_params_of_fused():
    assert_equal(run(LocalEngine, "dqn", UNNAMED), expected("dqn"))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("policy", ["averaging:every=2", pytest.param("averaging:workers=3", marks=pytest.mark.slow)])
def test_averaging_on_processes_gives_what_one_thread_gives(policy):
    assert_equal(run(LocalEngine, "a2c", policies.parse(policy)), run(SerialEngine, "a2c", policies.parse(policy)))


@pytest.mark.parametrize(
    ("policy", "name", "lag"),
    [
        ("single_learner_coarse", "a2c", 2),
        pytest.param("distributed_replay:stores=2", "dqn", 0, marks=pytest.mark.slow),
    ],
)
def test_a_run_on_processes_goes_on_from_a_snapshot_to_the_same_bits(policy, name, lag):
    bound, made, plan = prepare_plan(ALGORITHMS[name], "gymnax:CartPole-v1", policy, envs=16, groups=8, lag=lag)
    states = []
    for stop in (False, True):
        engine = LocalEngine(plan, bound, made, seed=3, horizon=10)
        try:
            engine.start()
            engine.advance(3)
            if stop:
                snapshot = engine.snapshot()
                assert len(snapshot.get("in_flight_acting", ())) == lag
                assert paths(snapshot) == paths(engine.template())
                engine.rebuild()
                engine.restore(snapshot)
            engine.advance(3)
            states.append(jax.tree.map(np.array, engine.state()))
        finally:
            engine.close()
    jax.tree.map(np.testing.assert_array_equal, *states)


def test_hogwild_adds_what_every_replica_moved_and_counts_all_applies():
    bound, made, plan = prepare_plan(ALGORITHMS["a2c"], "gymnax:CartPole-v1", "hogwild:workers=2", envs=16, groups=8)
    engine = LocalEngine(plan, bound, made, seed=3, horizon=10)
    try:
        engine.start()
        reports = engine.advance(20)
        assert int(reports.tally.steps.sum()) == 20 * 16 * 8
        assert reports.flows["updates"].messages == 40
        assert int(engine.state().clock.applies) == 40  # each counts its own, so none is lost
    finally:
        engine.close()


def test_asking_for_more_cores_than_there_are_is_refused_with_both_numbers():
    there = len(os.sched_getaffinity(0))
    greedy = Policy("greedy", (Fragment("env act", 2, cores=there), Fragment("store grad apply", cores=1)))
    with pytest.raises(TesseraError, match=rf"asks for {2 * there + 1} cores .*available: {there}"):
        prepare_plan(ALGORITHMS["a2c"], "gymnax:CartPole-v1", greedy)


def test_more_processes_than_fit_into_memory_are_refused_with_both_numbers():
    with pytest.raises(TesseraError, match=r"1000 processes, .* take at least 29\d\.\d GB, available: "):
        check_memory(1000, 1 << 20, 0)


def test_replicas_that_share_a_process_are_batched_and_give_the_same():
    shared = Policy("shared", (Fragment("env act", replicas=4, processes=2), Fragment("store grad apply")))
    bound, made, plan = prepare_plan(ALGORITHMS["a2c"], "gymnax:CartPole-v1", shared, envs=16, groups=8)
    assert (plan.fragments[0].replicas, plan.fragments[0].asked) == (2, 4)
    del bound, made


def test_what_cannot_be_sent_to_a_process_is_refused():
    class Local(A2C):
        """Defined where no other process can find it."""

    with pytest.raises(TesseraError, match="top level of a module"):
        train(Local(unroll=8), "gymnax:CartPole-v1", "single_learner_coarse", steps=1_000, quiet=True)


def test_a_colouring_with_asynchronous_gradients_and_synchronous_params_is_refused():
    with pytest.raises(TesseraError, match="with async gradients params must be async too"):
        Policy("p", (Fragment("env act store grad", 2), Fragment("apply")), {"gradients": Cut("async")})
