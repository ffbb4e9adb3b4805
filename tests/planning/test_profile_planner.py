"""A planner by a profile: predictions of a saved profile reach the summary of a run."""

from __future__ import annotations

import pytest

import tessera
from tessera.engines.simulated.costs import Costs
from tessera.engines.simulated.machine import Machine
from tessera.planning.planner import Measured
from tessera.planning.prepare import prepare_plan
from tessera.planning.profile_planner import ProfilePlanner
from tessera.profiling.profile import Profile, about, circumstances, save_profile

ENV = "gymnax:CartPole-v1"
ALGORITHM = tessera.A2C(unroll=8, widths=(8,))
MACHINE = Machine(cores=2, accelerators=0, memory=2**34, accelerator_memory=0)
COSTS = Costs({"act observed -> actions": ((1, 0.008),)})
"""A step of acting takes 8 ms, for however many environments."""


def planned(policy: str, **options):
    return prepare_plan(ALGORITHM, ENV, policy, envs=8, groups=4, **options)


def test_a_plan_is_predicted_by_its_costs():
    bound, env, plan = planned("fused:devices=1")
    found = ProfilePlanner(bound, env, COSTS, MACHINE).predict(plan)
    assert found is not None
    assert found.steps_per_second == pytest.approx(64 / 0.064)  # an update has 8 steps of 8 environments


@pytest.mark.parametrize("engine", ["serial", "ray"])
def test_nothing_is_predicted_of_plans_that_take_turns_or_run_elsewhere(engine):
    bound, env, plan = planned("single_learner_coarse:actors=2", engine=engine)
    assert ProfilePlanner(bound, env, COSTS, MACHINE).predict(plan) is None


def test_better_plans_are_those_that_are_found():
    bound, env, plan = planned("fused:devices=1")
    measured = Measured(steps_per_second=1.0, updates_per_second=1.0)
    assert ProfilePlanner(bound, env, COSTS, MACHINE).better(plan, measured) is None
    assert ProfilePlanner(bound, env, COSTS, MACHINE, find=lambda plan, *_: plan).better(plan, measured) is plan


def test_a_run_with_a_saved_profile_has_its_prediction_beside_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tessera.profiling.profile.cache_folder", lambda: tmp_path / "cache")
    bound, env, plan = planned("fused:devices=1")
    path = save_profile(Profile(COSTS, MACHINE, about(bound, env, plan), circumstances(), 0.0, 1.0))
    options = {"envs": 8, "groups": 4, "steps": 64 * 3, "eval_episodes": 1}
    found = tessera.train(ALGORITHM, ENV, "fused:devices=1", **options)
    assert found.summary["predicted"] == {"steps_per_second": 1000.0, "lag_mean": 0.0, "lag_max": 0.0}
    assert found.summary["measured"]["steps_per_second"] > 0
    assert "steps/s after the first update, predicted 1,000)" in capsys.readouterr().out
    path.write_text("{}")
    assert tessera.train(ALGORITHM, ENV, "fused:devices=1", **options).summary["predicted"] is None
    assert "is not a profile" in capsys.readouterr().out
