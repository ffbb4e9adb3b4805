from __future__ import annotations

import dataclasses
import json

import pytest

from tessera import policies
from tessera.graph.plan import Needs, Plan, make_plan
from tessera.graph.policy import Cut, Fragment, Policy
from tessera.graph.policy_files import from_data
from tessera.graph.smaller_plans import losses, same_steps, with_fewer

QUEUE = Needs("ppo", "cartpole", device_env=True, batch=None, priorities=False, absorbs=False)
REPLAY = dataclasses.replace(QUEUE, algorithm="dqn", batch=32, priorities=True)


def planned(policy: str | Policy, needs: Needs = QUEUE, **options: int) -> Plan:
    chosen = policies.parse(policy) if isinstance(policy, str) else policy
    return make_plan(chosen, needs, 16, engine="ray", **options)


def fewer(plan: Plan, index: int) -> Plan:
    found = with_fewer(plan, index)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "policy", ["single_learner_coarse:actors=3", "multi_learner:learners=3", "central:workers=3", "averaging:workers=3"]
)
def test_it_is_the_plan_that_would_have_been_made_with_fewer_replicas(policy):
    name, _, number = policy.partition("=")
    assert number == "3"
    assert fewer(planned(policy), 0) == planned(f"{name}=2", groups=8)


def test_groups_stay_what_they_were_though_fewer_replicas_would_need_fewer():
    wide = Policy("p", (Fragment("env act store grad apply", replicas=16),))
    assert fewer(planned(wide), 0).groups == 16


def test_one_of_each_cannot_lose_any():
    plan = planned("single_learner_coarse:actors=1")
    assert [with_fewer(plan, index) for index in (0, 1)] == [None, None]
    assert with_fewer(dataclasses.replace(planned("multi_learner"), origin=None), 0) is None


def test_replicas_that_share_processes_lose_a_process():
    batched = Policy("p", (Fragment("env act", replicas=8, processes=3), Fragment("store grad apply")))
    plan = fewer(planned(batched), 0)
    assert (plan.fragments[0].replicas, plan.fragments[0].asked) == (2, 8)
    assert fewer(plan, 0).fragments[0].replicas == 1


@pytest.mark.parametrize(("actors", "first", "left", "waited"), [(4, 2, 2, 1), (4, 3, 2, 2), (2, 2, 1, 1)])
def test_an_update_waits_for_no_more_actors_than_there_are(actors, first, left, waited):
    plan = fewer(planned(f"single_learner_coarse:actors={actors},mode=first,first={first}"), 0)
    (experience,) = (c for c in plan.channels if c.stream == "experience")
    assert plan.fragments[0].replicas == left  # 8 groups are not dealt evenly to 3
    assert experience.discipline.first == waited


def test_what_a_replay_holds_stays_the_same_or_there_is_no_such_plan():
    plan = planned("single_learner_coarse:actors=4,mode=first,first=2", REPLAY)
    assert fewer(plan, 0).batches == plan.batches == 4
    assert with_fewer(planned("single_learner_coarse:actors=2,mode=first,first=1", REPLAY), 0) is None


def test_agents_are_dealt_evenly_to_those_that_are_left():
    needs = dataclasses.replace(QUEUE, agents=6)
    plan = planned("environments", needs)
    numbers = []
    while (found := with_fewer(plan, plan.home("act"))) is not None:
        plan = found
        numbers.append(plan.fragments[plan.home("act")].replicas)
    assert numbers == [3, 2, 1]


def test_a_run_makes_the_same_number_of_steps():
    four = planned(Policy("p", (Fragment("env act store grad", 4), Fragment("apply")), ASYNC))
    two = fewer(fewer(four, 0), 0)
    assert same_steps(100, four, two) == 50
    assert same_steps(100, four, two, done=60) == 80  # 40 that were left are worth 20
    three = planned("multi_learner:learners=3")
    assert same_steps(100, three, fewer(three, 0), done=7) == 100


ASYNC = {"gradients": Cut("async"), "params": Cut("async")}


def test_losses_are_named_and_a_plan_is_saved_with_its_colouring():
    plan = planned("central:workers=3,shards=2")
    assert losses(plan, fewer(plan, 0)) == "2 of 3 env+act+store+grad"
    assert losses(plan, fewer(fewer(plan, 0), 1)) == "2 of 3 env+act+store+grad, 1 of 2 apply"
    saved = json.loads(json.dumps(plan.to_json()))
    assert "origin" not in saved
    assert from_data(saved["colouring"], "plan.json", "unnamed") == plan.origin[0]
