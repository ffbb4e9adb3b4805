"""Replicas that run at their own pace: what they play is counted, lag is measured, and no key is used twice."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from test_faults import wait_until

import tessera
from tessera.channels.control_words import WAITING
from tessera.engines.local import LocalEngine
from tessera.engines.serial import SerialEngine
from tessera.planning.prepare import prepare_plan
from tessera.program.keys import clock_at, count_of
from tessera.runs.metrics import Meter

SMALL = tessera.A2C(unroll=8, widths=(8,))
ACTORS = "single_learner_coarse:actors=2,mode=async"
WORKERS = "central:mode=async,workers=2"
SECONDS = 60.0


def engine_of(kind: type[Any], policy: str, **options: Any) -> Any:
    bound, env, plan = prepare_plan(SMALL, "gymnax:CartPole-v1", policy, envs=16)
    return kind(plan, bound, env, seed=1, horizon=10_000, **options)


@pytest.fixture
def local():
    opened: list[LocalEngine] = []

    def make(policy: str) -> LocalEngine:
        opened.append(engine_of(LocalEngine, policy, note=lambda _: None))
        opened[-1].start()
        return opened[-1]

    yield make
    for engine in opened:
        engine.close()


def test_all_that_was_played_counts_at_a_checkpoint(local):
    engine = local(ACTORS)
    meter = Meter()
    meter.count(engine.advance(30).tally)
    actors = [k for k, job in enumerate(engine.jobs) if not engine.plan.counted(job.fragment)]
    # the learner has made its updates, so its queues fill up and the actors have to wait, amid an update of theirs
    wait_until(lambda: all(engine.controls[k].state == WAITING for k in actors), SECONDS)
    engine.snapshot()
    meter.count(engine.late_tally())
    played = sum(engine.controls[k].done for k in actors) * SMALL.unroll * engine.plan.envs // len(actors)
    assert meter.env_steps == played


def test_a_late_tally_leaves_the_rows_of_updates_that_were_begun_ahead(local):
    engine = local("single_learner_coarse:actors=2")
    engine.advance(2, ahead=4)
    engine.snapshot(("state",))
    assert engine.late_tally().steps.sum() == 0
    assert (engine.advance(4).tally.steps == SMALL.unroll * engine.plan.envs).all()


@pytest.mark.parametrize("policy", [ACTORS, WORKERS])
def test_lag_goes_on_from_where_a_run_is_resumed(policy):
    first = engine_of(SerialEngine, policy)
    first.start()
    before = first.advance(100)
    resumed = engine_of(SerialEngine, policy)
    resumed.restore(first.snapshot())
    after = resumed.advance(3)
    assert after.flows.keys() == before.flows.keys()
    for stream in ("experience", "gradients"):
        if stream in after.flows:
            assert after.flows[stream].lag_max <= 2
    assert after.lag_max.max() <= 2


def test_lag_is_never_negative_after_a_server_was_restarted(local):
    engine = local("central:mode=async,workers=2,shards=2")
    engine.advance(100)
    os.kill(engine.processes()["apply/0"], signal.SIGKILL)
    wait_until(lambda: engine.supervisor.restarted == 1, SECONDS)
    for _ in range(10):
        assert engine.advance(5).flows["gradients"].lag_sum >= 0


def test_gradients_that_arrive_late_are_lag():
    engine = engine_of(SerialEngine, WORKERS)
    engine.start()
    reports = engine.advance(50)
    row = Meter().row(reports)
    assert row["stream/gradients/lag_mean"] > 0
    assert row["lag/mean"] == pytest.approx(row["stream/gradients/lag_mean"])  # workers learn from their own samples


def test_a_snapshot_has_the_latest_clocks_of_all_replicas():
    engine = engine_of(SerialEngine, ACTORS)
    engine.start()
    for replica, clock in zip(engine.replicas, (8, 2**32 + 24), strict=False):
        replica.slots |= {"act_clock": clock_at(clock), "env_clock": clock_at(clock)}
    snapshot = engine.snapshot()
    assert count_of(snapshot["act_clock"]) == count_of(snapshot["env_clock"]) == 2**32 + 24
