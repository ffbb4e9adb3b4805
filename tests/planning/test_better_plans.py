"""A run that has drifted is planned again, with costs as it shows them."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tessera
from tessera.engines.simulated.costs import Costs, LinkCosts, Timing, Work
from tessera.engines.simulated.machine import Machine
from tessera.graph.plan_changes import refuse_change
from tessera.planning.better_plans import better_plan, scaled
from tessera.planning.planner import Measured
from tessera.planning.prepare import prepare_plan
from tessera.planning.workload import Workload

ACTING, LEARNING = "act observed -> actions", "grad batch+summary -> gradients"
MACHINE = Machine(cores=4, accelerators=0, memory=2**36, accelerator_memory=0)


def workload(policy: str, acting: float, learning: float) -> Workload:
    """8 steps of acting, which grow with environments, and a gradient, which does not."""
    planned = prepare_plan(tessera.A2C(unroll=8, widths=(8,)), "gymnax:CartPole-v1", policy, envs=8, groups=8)
    costs = Costs(
        {ACTING: ((1, acting / 8), (8, acting)), LEARNING: ((8, learning),)}, links=LinkCosts(cpu_per_message=1e-4)
    )
    return Workload(*planned, costs, MACHINE)


def test_costs_of_some_operators_take_longer():
    both = "8 x (act observed -> actions; env actions -> timesteps)"
    costs = Costs(
        {ACTING: ((8, 1.0),), LEARNING: ((8, 1.0),)},
        timings={
            both: (Timing(8, 1, (Work(1.0, 0.5),)),),
            "env actions -> timesteps": (Timing(8, 1, (Work(1.0, 1.0),)),),
        },
    )
    found = scaled(costs, ("env", "act"), 3.0)
    assert found.ops == {ACTING: ((8, 3.0),), LEARNING: ((8, 1.0),)}
    assert found.timings[both][0].calls == (Work(3.0, 1.5),)
    assert scaled(costs, ("env",), 3.0).timings[both] == costs.timings[both]  # not of env alone
    assert scaled(costs, ("env",), 3.0).timings["env actions -> timesteps"][0].calls == (Work(3.0, 3.0),)


def test_a_run_moves_to_more_players_when_playing_takes_longer_than_was_measured():
    given = workload("single_learner_coarse:actors=1", acting=0.01, learning=0.08)
    plan = given.reference
    predicted = given.simulate(plan, 10, 3)
    assert 1 / predicted.updates_per_second == pytest.approx(0.16, rel=0.02)  # in turn: 8 steps, and a gradient
    # acting takes four times as long: 0.32 and 0.08, so that one actor works for four fifths of the time
    busy = {"env+act": 0.8, "store+grad+apply": 0.2}
    measured = Measured(steps_per_second=64 / 0.4, updates_per_second=1 / 0.4, busy=busy)
    better = better_plan(given, plan, predicted, measured)
    assert better is not None
    refuse_change(plan, better)
    assert better.fragments[better.home("act")].replicas >= 4
    assert better.reason


def test_a_run_stays_where_a_change_would_gain_too_little():
    given = workload("fused:devices=1", acting=1e-5, learning=0.08)
    predicted = given.simulate(given.reference, 10, 3)
    half = Measured(steps_per_second=1.0, updates_per_second=predicted.updates_per_second / 2, busy={})
    assert better_plan(given, given.reference, predicted, half) is None
    assert better_plan(given, given.reference, None, half) is None


def test_cores_that_others_use_are_not_counted_on():
    given = workload("single_learner_coarse:actors=1", acting=0.04, learning=0.01)
    predicted = given.simulate(given.reference, 10, 3)
    busy = {"env+act": 0.97, "store+grad+apply": 0.03}
    measured = Measured(steps_per_second=64 / 0.33, updates_per_second=1 / 0.33, busy=busy)
    free, shared = (
        better_plan(given, given.reference, predicted, replace(measured, other_cores=other)) for other in (0.0, 3.0)
    )
    assert free is not None
    assert free.fragments[free.home("act")].replicas > 1
    assert shared is None  # on one core nothing is gained by more processes
