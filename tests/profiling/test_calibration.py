"""What waiting costs, so that simulated runs take as long as real ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tessera import PPO
from tessera.engines.simulated.costs import Costs, Timing, Work
from tessera.engines.simulated.engine import SimulatedEngine
from tessera.graph.policy import Fragment, Policy
from tessera.planning.prepare import prepare_plan
from tessera.profiling.calibration import Calibration, times_after_wait
from tessera.profiling.trial_run import TrialRun
from tessera.profiling.tried_plans import replan
from tessera.support.machine import cores

ACTING, STEPPING = "act observed -> actions", "env actions -> timesteps"
COSTS = Costs({ACTING: ((8, 0.001),), STEPPING: ((8, 0.001),)})


@pytest.fixture(scope="module")
def planned():
    return prepare_plan(PPO(unroll=4), "gymnax:CartPole-v1", "fused:devices=1", envs=8, groups=4)


def run_of(planned, *fragments, replicas=1):
    """A run of a plan that took as long as it would without any waiting."""
    first, *others = fragments
    tried = replan(planned[2], Policy("two", (Fragment(first, replicas=replicas), *map(Fragment, others))))
    ran = TrialRun(tried, 1.0, {}, 0.0, 20, speed=1.0, first_calls={})
    return replace(ran, update_seconds=update_seconds(planned, COSTS, ran))


def update_seconds(planned, costs, run):
    bound, environment, _ = planned
    return 1 / SimulatedEngine(run.plan, bound, environment, costs, cores()).run(20).updates_per_second


def test_what_comes_after_a_wait_is_compared_with_the_same_without_one(planned):
    timings = {STEPPING: (Timing(8, 1, (Work(2.0, 2.0),)),)}
    first = {STEPPING: 3.0, "send acting": 1.5, "receive acting": 0.5, "act -> unknown": 9.0}
    run = replace(run_of(planned, "env act", "store grad apply"), first_calls=first)
    exchanges = {"send acting": 1.0, "receive acting": 1.0}
    found = times_after_wait(Costs(timings=timings), run, exchanges)
    assert found == {STEPPING: 1.0, "send acting": 0.5, "receive acting": 0.0}
    slower = times_after_wait(Costs(timings=timings), run, exchanges, speed=0.8)  # so that 3.0 s are 2.4 s of work
    assert slower[STEPPING] == pytest.approx(0.4)


def test_waking_takes_what_a_real_update_takes_longer_than_a_simulated_one(planned):
    run = run_of(planned, "env", "act store grad apply")
    calibration = Calibration(*planned[:2], usual_speed=1.0)
    assert calibration.with_waits(COSTS, [run], {}).wake == 0.0
    slower = replace(run, update_seconds=run.update_seconds + 0.001)
    costs = calibration.with_waits(COSTS, [slower], {})
    assert costs.wake > 0
    assert set(costs.wakes.values()) == {costs.wake}
    assert update_seconds(planned, costs, slower) == pytest.approx(slower.update_seconds, rel=0.01)


def test_a_run_on_a_slower_machine_does_not_count_as_waking(planned):
    run = run_of(planned, "env", "act store grad apply")
    slower = replace(run, update_seconds=run.update_seconds / 0.8, speed=0.8)
    assert Calibration(*planned[:2], usual_speed=1.0).with_waits(COSTS, [slower], {}).wake == pytest.approx(0, abs=1e-5)


def test_waking_costs_each_slot_what_the_run_shows_that_exchanges_it_most_often(planned):
    steps = run_of(planned, "env", "act store grad apply")
    gradients = run_of(planned, "env act store grad", "apply")
    runs = [
        replace(steps, update_seconds=steps.update_seconds + 0.0004),
        replace(gradients, update_seconds=gradients.update_seconds + 0.004),
    ]
    costs = Calibration(*planned[:2], usual_speed=1.0).with_waits(COSTS, runs, {})
    assert costs.wake_for("gradients", full=False) > 2 * costs.wake_for("actions", full=False) > 0
    assert costs.wake_for("experience", full=False) == costs.wake
    for run in runs:
        assert update_seconds(planned, costs, run) == pytest.approx(run.update_seconds, rel=0.01)


def test_times_after_a_wait_count_for_less_if_simulated_updates_take_longer_than_real_ones(planned):
    run = run_of(planned, "env", "act store grad apply")
    costs = replace(COSTS, timings={STEPPING: (Timing(8, 1, (Work(0.001, 0.001),)),)})
    run = replace(
        run, first_calls={STEPPING: 0.003}, update_seconds=run.update_seconds + 0.004
    )  # 4 steps, 8 ms too long
    found = Calibration(*planned[:2], usual_speed=1.0).with_waits(costs, [run], {})
    assert found.wake == 0.0
    assert found.after_wait[STEPPING] == pytest.approx(0.001, rel=0.1)
    assert update_seconds(planned, found, run) == pytest.approx(run.update_seconds, rel=0.01)


def test_switching_costs_what_a_crowded_run_takes_longer_for_each_slot_by_its_own_run(planned):
    steps = run_of(planned, "env", "act store grad apply", replicas=4)
    experience = run_of(planned, "env act", "store grad apply", replicas=4)
    runs = [
        replace(steps, update_seconds=1.03 * steps.update_seconds),
        replace(experience, update_seconds=1.1 * experience.update_seconds),
    ]
    costs = Calibration(*planned[:2], usual_speed=1.0).with_switches(COSTS, runs)
    assert costs.wake_for("experience", full=True) > costs.wake_for("actions", full=True) > 0
    assert costs.wake_for("experience", full=False) == 0.0
    for run in runs:
        assert update_seconds(planned, costs, run) == pytest.approx(run.update_seconds, rel=0.02)
