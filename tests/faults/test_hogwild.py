"""Workers that share one memory: whoever begins, dies or is restored, it holds what all of them have learned."""

from __future__ import annotations

import dataclasses
import os
import signal
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tessera
from tessera.engines.local import LocalEngine
from tessera.engines.replica.replica import Replica
from tessera.engines.replica.takeover import take_over
from tessera.engines.serial import SerialEngine
from tessera.maths.statistics import Moments
from tessera.planning.prepare import prepare_plan

A2C = tessera.A2C(unroll=8, widths=(8,), learning_rate=0.01)
DQN = tessera.DQN(unroll=4, draws=2, batch=32, capacity=4_096, warmup=8, widths=(8,), target_period=50)
CARTPOLE = "gymnax:CartPole-v1"
SEEN_MEAN, SEEN_DEVIATION = np.float32([5.0, -300.0]), np.float32([1.0, 4.0])


class Noise(tessera.DeviceEnvironment):
    """Observations of known mean and variance, whatever is done."""

    spec = tessera.Spec((2,), "float32", tessera.Discrete(2))

    def reset(self, key: Any) -> tuple[Any, Any]:
        return jnp.int32(0), SEEN_MEAN + SEEN_DEVIATION * jax.random.normal(key, (2,), jnp.float32)

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, Any, Any, Any, Any]:
        del action
        _, seen = self.reset(key)
        return state + 1, seen, seen[0], False, state == 9


def opened(kind: Any, algorithm: Any, policy: str, updates: int, env: Any = CARTPOLE, horizon: int = 100) -> Any:
    """An engine that has made some updates."""
    bound, made, plan = prepare_plan(algorithm, env, policy, envs=16, groups=8, engine=kind.name)
    engine = kind(plan, bound, made, seed=3, horizon=horizon, **({} if kind is SerialEngine else {"note": _ignore}))
    engine.start()
    if updates:
        engine.advance(updates)
    return engine


def _ignore(_: str) -> None:
    pass


def host(tree: Any) -> Any:
    return jax.tree.map(np.array, tree)


def assert_same(tree: Any, wanted: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, host(tree), host(wanted))


def successor(engine: SerialEngine, number: int) -> Replica:
    """A new replica in the place of another, as a new process would make it."""
    old = engine.replicas[number]
    ends = (lambda k, lane: engine.links[k, lane], lambda k: old.port.exchanges.get(k))
    return Replica(
        engine.plan, engine.training, old.programs, engine.routes, old.fragment, number, 3, 100, *ends, begun=(20, 1)
    )  # fmt: skip


@pytest.mark.parametrize(("algorithm", "carries"), [(A2C, "state"), (DQN, "state"), (DQN, "params")])
def test_whoever_takes_a_place_begins_with_what_the_memory_holds(algorithm, carries):
    algorithm = dataclasses.replace(algorithm, **({"normalise_observations": True} if algorithm is A2C else {}))
    engine = opened(SerialEngine, algorithm, f"hogwild:workers=3,carries={carries}", 20)
    old, wanted = host(engine.replicas[1].slots["state"]), engine.state()
    assert float(jnp.abs(jax.tree.leaves(wanted.params)[0]).max()) > 0
    new = successor(engine, 1)
    assert take_over(new, 20, 0) == 20
    state = new.slots["state"]
    assert_same(state.params, wanted.params)
    assert_same(state.statistics, wanted.statistics)
    assert_same(state.clock, wanted.clock)
    assert_same(new.slots["acting"].params, wanted.params)
    assert_same(state.target, old.target)
    if carries == "params":
        assert_same(state.optimizer, old.optimizer)
    else:
        whole = [x for x in jax.tree.leaves(state.optimizer) if jnp.issubdtype(x.dtype, jnp.integer)]
        assert [int(x) for x in whole] == [20 * algorithm.bind(Noise.spec).schedule.applies] * len(whole)
    moments = [x for x in jax.tree.leaves(state.optimizer) if jnp.issubdtype(x.dtype, jnp.floating)]
    assert max(float(jnp.abs(x).max()) for x in moments) > 0


def test_a_place_that_was_taken_over_counts_what_its_predecessor_has_added():
    engine = opened(SerialEngine, A2C, "hogwild:workers=2", 20)
    new = successor(engine, 1)
    assert take_over(new, 19, 0) == 20  # it died after it had added its last update, and before it said so
    assert take_over(new, 19, 0) == 20
    assert int(new.slots["state"].clock.applies) == 40


@pytest.mark.parametrize("workers", [2, 8])
def test_statistics_in_one_memory_are_those_of_all_data(workers):
    normalising = dataclasses.replace(A2C, normalise_observations=True, normalise_rewards=True)
    wanted = opened(SerialEngine, normalising, "fused:devices=1", 30, Noise()).state().statistics
    engine = opened(SerialEngine, normalising, f"hogwild:workers={workers}", 30, Noise())
    found: Moments = engine.state().statistics.observation
    assert float(found.count) == 30 * 8 * 16
    np.testing.assert_allclose(found.mean, SEEN_MEAN, atol=0.3)
    np.testing.assert_allclose(found.m2, np.square(SEEN_DEVIATION), rtol=0.1)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4), engine.state().statistics, wanted)


def test_a_restored_run_has_the_statistics_of_all_data_and_goes_on_with_them():
    normalising = dataclasses.replace(A2C, normalise_observations=True)
    engine = opened(SerialEngine, normalising, "hogwild:workers=3", 10, Noise())
    snapshot = jax.device_get(engine.snapshot())
    other = opened(SerialEngine, normalising, "hogwild:workers=3", 0, Noise())
    for run in (engine, other):
        run.restore(snapshot)
        assert_same(run.state().statistics, snapshot["state"].statistics)
        run.advance(10)
    assert float(engine.state().statistics.observation.count) == 20 * 8 * 16
    assert_same(engine.state(), other.state())


def test_averages_that_decay_stay_averages_however_many_let_them_decay():
    forgetful = dataclasses.replace(A2C, rms_decay=0.5)
    engine = opened(SerialEngine, forgetful, "hogwild:workers=8,carries=state", 0)
    alone = opened(SerialEngine, forgetful, "fused:devices=1", 0)
    largest, usual = 0.0, 0.0
    for _ in range(10):
        engine.advance(5)
        alone.advance(5)
        for replica in engine.replicas:
            assert min(float(x.min()) for x in jax.tree.leaves(replica.slots["state"].optimizer)) >= 0
        largest = max(largest, *(float(x.max()) for x in jax.tree.leaves(engine.state().optimizer)))
        usual = max(usual, *(float(x.max()) for x in jax.tree.leaves(alone.state().optimizer)))
    assert largest < 10 * usual


def test_a_restored_run_has_made_as_many_updates_as_each_worker(monkeypatch):
    begun: list[int] = []
    monkeypatch.setattr(Replica, "start_new_episodes", lambda _, update: begun.append(update))
    engine = opened(SerialEngine, DQN, "hogwild:workers=2", 6, horizon=12)
    assert int(engine.state().clock.applies) == 2 * 2 * 6
    engine.restore(jax.device_get(engine.snapshot()))
    assert begun == [6, 6]
    engine.advance(6)
    clock = engine.state().clock
    assert int(clock.applies) == int(clock.horizon) == 2 * 2 * 12


@pytest.mark.parametrize("kind", [SerialEngine, LocalEngine])
def test_all_begin_with_what_the_memory_held_whatever_each_had_read(kind):
    engine = opened(kind, A2C, "hogwild:workers=2,carries=state", 5, horizon=10)
    try:
        snapshot = jax.device_get(engine.snapshot())
        astray = jax.tree.map(lambda x: x + np.asarray(1000, x.dtype), snapshot["peers"])
        engine.advance(2)
        if kind is LocalEngine:
            engine.rebuild()
        engine.restore({**snapshot, "peers": astray})
        found = engine.snapshot()
        for state in (found["state"], *found["peers"]):
            for part in ("params", "optimizer", "statistics", "clock"):
                assert_same(getattr(state, part), getattr(snapshot["state"], part))
        assert kind is SerialEngine or engine.base == 5
        engine.advance(5)
        assert int(engine.state().clock.applies) == int(engine.state().clock.horizon) == 2 * 10
    finally:
        engine.close()


@pytest.mark.parametrize(("workers", "polyak"), [(2, 0.0), (4, 0.05)])
def test_every_worker_has_a_target_that_follows_the_params(workers, polyak):
    engine = opened(
        SerialEngine,
        dataclasses.replace(DQN, draws=1, target_period=10, polyak=polyak),
        f"hogwild:workers={workers}",
        0,
    )
    first = host(engine.state().params)
    engine.advance(50)
    now = host(engine.state().params)

    def distance(a: Any, b: Any) -> float:
        return float(sum(np.abs(x - y).sum() for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True)))

    for replica in engine.replicas:
        target = host(replica.slots["state"].target)
        assert distance(target, now) < 0.5 * distance(first, now)


def test_lag_is_counted_in_updates_of_all_workers():
    engine = opened(SerialEngine, DQN, "hogwild:workers=4", 0)
    reports = engine.advance(40)
    assert 0 < float(reports.lag_max.max()) <= 40
    flow = reports.flows["updates"]
    assert flow.messages == flow.lags == 4 * 40
    assert 0.7 < flow.lag_mean <= 0.75  # each reads what the three others have added since: 3/4 of an update
    lag = reports.lag()
    assert lag is not None
    np.testing.assert_allclose(lag, (reports.lag_mean.mean() + flow.lag_mean, reports.lag_max.max() + flow.lag_max))
    engine.restore(jax.device_get(engine.snapshot()))
    assert 0 <= engine.advance(1).flows["updates"].lag_sum <= 4 * 0.75


@pytest.mark.slow
def test_a_worker_that_is_killed_again_and_again_costs_no_count():
    engine = opened(LocalEngine, dataclasses.replace(A2C, normalise_observations=True), "hogwild:workers=2", 4)
    try:
        for k in range(2):
            os.kill(engine.processes()[f"env+act+store+grad+apply/{k % 2}"], signal.SIGKILL)
            engine.advance(20)
        state = engine.state()
        assert engine.restarts == 2
        assert int(state.clock.applies) == 2 * 44
        assert abs(float(state.statistics.observation.count) - 44 * 8 * 16) <= 2 * 8 * 8  # one update for each death
    finally:
        engine.close()
