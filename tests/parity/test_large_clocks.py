"""Runs of any length: clocks and counters pass 2**31 and 2**32 as any other number."""

from __future__ import annotations

import os
import signal
from typing import Any

import jax
import numpy as np
import pytest
from matrix import ALGORITHMS, ENV, colouring, engine_for, furthest

import tessera
from tessera.algorithms.contract import Clock, Transition
from tessera.engines.local import LocalEngine
from tessera.engines.replica.snapshots import with_horizon
from tessera.engines.serial import SerialEngine
from tessera.errors import TesseraError
from tessera.planning.prepare import planned_updates, prepare_plan
from tessera.program.initial import clocks_at
from tessera.program.keys import clock_at, count_of
from tessera.runs.checkpoint import flatten, in_present_form, unflatten
from tessera.stores.replay import ReplayBuffer

KEYED = ("env_clock", "act_clock", "store_clock", "grad_clock")
CUT = {"ppo": "central:workers=2,shards=2", "dqn": "gorila:mode=sync,actors=2,stores=2,learners=2,shards=3"}


def at(snapshot: dict[str, Any], clock: int, applied: int) -> dict[str, Any]:
    """The same snapshot of a run that is older: all clocks show `clock`, and so many gradients were applied."""
    by = np.asarray(applied - snapshot["state"].clock.applied()).astype(np.int32)

    def leaf(x: Any) -> Any:
        if isinstance(x, Clock):
            return x.at(applied)
        aged = isinstance(x, Transition | ReplayBuffer) and x.version is not None
        return x._replace(version=x.version + by) if aged else x  # its rows are as new as before

    moved = with_horizon(jax.device_get(snapshot), 2 * applied + 16)
    moved = jax.tree.map(leaf, moved, is_leaf=lambda x: isinstance(x, Clock | Transition | ReplayBuffer))
    return moved | {slot: clock_at(clock) for slot in KEYED if slot in moved}


def gone_on(name: str, policy: str, clock: int) -> tuple[SerialEngine, Any]:
    """An engine after one update, then two more at clocks from `clock` on; and the reports of these."""
    engine = engine_for(ALGORITHMS[name], colouring(policy))
    engine.start()
    engine.advance(1)
    engine.restore(at(engine.snapshot(), clock, clock))
    return engine, engine.advance(2)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("name", "clock"),
    [
        pytest.param("ppo", 2**31 - 3, marks=pytest.mark.slow),
        ("ppo", 2**32 - 3),
        pytest.param("dqn", 2**31 - 3, marks=pytest.mark.slow),
        pytest.param("dqn", 2**32 - 3, marks=pytest.mark.slow),
    ],
)
def test_a_run_whose_clocks_pass_a_word_goes_on_and_every_policy_gives_the_params_of_fused(name, clock):
    whole, reports = gone_on(name, "fused:devices=1", clock)
    cut, cut_reports = gone_on(name, CUT[name], clock)
    for engine in (whole, cut):
        schedule, slots = engine.training.algorithm.schedule, engine.snapshot()
        assert slots["state"].clock.applied() == clock + 2 * schedule.applies
        assert count_of(slots["env_clock"]) == count_of(slots["act_clock"]) == clock + 2 * schedule.steps
    np.testing.assert_array_equal(reports.lag_max, cut_reports.lag_max)
    assert abs(reports.lag_max).max() < 3  # in updates; a version that overflowed would be far away
    states = [jax.tree.map(np.array, engine.state()) for engine in (whole, cut)]
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9), *states)


def test_random_numbers_do_not_begin_again_when_a_clock_passes_32_bits():
    begin, beyond = (gone_on("ppo", "fused:devices=1", clock)[0].state().params for clock in (0, 2**32))
    assert furthest(begin, beyond) > 1e-5


def before_wide_clocks(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint as versions with clocks of 32 bits wrote them."""
    narrow = {path: x for path, x in arrays.items() if not path.endswith("clock/wraps")}
    for path, x in narrow.items():
        if path.endswith("_clock"):
            narrow[path] = x[0].astype(np.int32)
        elif path.endswith("clock/horizon"):
            narrow[path] = x.astype(np.int32)
    return narrow


@pytest.mark.parametrize(
    ("name", "policy", "clock"),
    [("ppo", "fused:devices=1", 9), ("a2c", "averaging:workers=2,every=2", 9), ("ppo", "fused:devices=1", 2**31 + 9)],
)
def test_a_checkpoint_with_clocks_of_32_bits_goes_on_bit_for_bit(name, policy, clock):
    """Also one in which they had become negative: keys were made from the same bits."""
    engines = [engine_for(ALGORITHMS[name], colouring(policy), precision="f32") for _ in range(2)]
    engines[0].start()
    engines[0].advance(1)
    young = engines[0].snapshot()
    saved = flatten(young | {slot: clock_at(clock) for slot in KEYED if slot in young})
    earlier = before_wide_clocks(saved)
    assert all(earlier[slot].shape == () for slot in KEYED if slot in earlier)
    for engine, arrays in zip(engines, (saved, in_present_form(earlier)), strict=True):
        engine.restore(unflatten(engine.template(), arrays, "the checkpoint"))
        engine.advance(3)
    after, expected = (flatten(jax.device_get(engine.snapshot())) for engine in engines)
    assert after.keys() == expected.keys()
    assert not [path for path in after if after[path].tobytes() != expected[path].tobytes()]


@pytest.mark.parametrize("update", [pytest.param(2**28, marks=pytest.mark.slow), 2**32 - 2])
def test_a_replica_that_is_replaced_late_in_a_run_lives(update):
    bound, made, plan = prepare_plan(tessera.A2C(unroll=8, widths=(8,)), ENV, "single_learner_coarse:actors=2", envs=16)
    young = SerialEngine(plan, bound, made, seed=1, horizon=10)
    young.start()
    young.advance(1)
    clocks = {s: c for s, c in clocks_at(young.training, update).items() if s in KEYED}
    engine = LocalEngine(plan, bound, made, seed=1, horizon=2**40, note=lambda _: None)
    try:
        engine.restore(at(young.snapshot(), 0, update) | clocks)
        engine.advance(2)
        os.kill(engine.processes()["env+act/0"], signal.SIGKILL)
        engine.advance(6)
        assert engine.restarts == 1
        after = engine.snapshot()
        assert after["state"].clock.applied() == update + 8
        assert count_of(after["act_clock"]) == (update + 8) * 8
    finally:
        engine.close()


@pytest.mark.parametrize(("steps", "kind"), [(10**12, SerialEngine), (10**15, LocalEngine), (2**62, SerialEngine)])
def test_a_run_of_any_length_trains(kind, steps):
    policy = "fused:devices=1" if kind is SerialEngine else "single_learner_coarse:actors=1"
    bound, made, plan = prepare_plan(tessera.PPO(unroll=8, widths=(8,)), ENV, policy, envs=16)
    engine = kind(plan, bound, made, seed=1, horizon=planned_updates(bound, plan, steps))
    try:
        before = jax.device_get(engine.state())
        engine.start()
        engine.advance(2)
        after = jax.device_get(engine.state())
        assert furthest(before.params, after.params) > 1e-5
        assert float(after.clock.horizon) == pytest.approx(steps / 8 / 16 * bound.schedule.applies, rel=1e-6)
        assert 0 < float(after.clock.progress) < 1e-6
    finally:
        engine.close()


@pytest.mark.parametrize("steps", [2**63, 10**400])
def test_a_run_that_no_counter_could_count_is_refused(steps):
    bound, _, plan = prepare_plan(tessera.PPO(), ENV, "fused:devices=1", envs=16)
    with pytest.raises(TesseraError, match=r"--steps is too large: .* 64 bits"):
        planned_updates(bound, plan, steps)
