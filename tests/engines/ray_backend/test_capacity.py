"""Whether a plan fits on the nodes of a cluster, and how much of it does; Ray is not needed for that."""

from __future__ import annotations

import pytest

from tessera.engines.base import NoCapacity
from tessera.engines.ray_backend.capacity import check_capacity, plan_that_fits, with_shared_gpus
from tessera.graph.plan import Needs, Plan, make_plan
from tessera.graph.policy import Fragment, Policy

NEEDS = Needs("ppo", "cartpole", device_env=True, batch=None, priorities=False, absorbs=False)


def planned(*fragments: Fragment, platform: str = "cpu") -> Plan:
    return make_plan(Policy("p", fragments), NEEDS, 16, engine="ray", platform=platform)


def cpus(*numbers: float) -> list[dict[str, float]]:
    return [{"CPU": number} for number in numbers]


def replicas(plan: Plan) -> list[int]:
    return [f.replicas for f in plan.fragments]


def test_a_plan_that_fits_is_left_as_it_is():
    plan = planned(Fragment("env act", 3), Fragment("store grad apply"))
    assert plan_that_fits(plan, cpus(2, 2)) is plan


@pytest.mark.parametrize(
    ("nodes", "fitting"), [((2, 1), [2, 1]), ((1, 1), [1, 1]), ((2.5, 0.5), [1, 1]), ((0, 3), [2, 1])]
)
def test_a_plan_keeps_as_many_replicas_as_there_is_room_for(nodes, fitting):
    plan = planned(Fragment("env act", 3), Fragment("store grad apply"))
    assert replicas(plan_that_fits(plan, cpus(*nodes))) == fitting


def test_the_fragment_with_the_most_replicas_loses_first():
    plan = planned(Fragment("env act", 4), Fragment("store", 2), Fragment("grad apply"))
    assert replicas(plan_that_fits(plan, cpus(5))) == [2, 2, 1]
    assert replicas(plan_that_fits(plan, cpus(3))) == [1, 1, 1]


def test_small_replicas_are_not_given_up_for_a_large_one_that_they_do_not_help(monkeypatch):
    monkeypatch.setattr("tessera.graph.plan.cores", lambda: 64)
    plan = planned(Fragment("env act", 4), Fragment("store grad apply", 2, cores=4))
    assert replicas(plan_that_fits(plan, cpus(4, 2, 2))) == [4, 1]


def test_if_not_even_one_of_each_fits_the_error_has_asked_and_available():
    plan = planned(Fragment("env act", 3), Fragment("store grad apply"))
    with pytest.raises(
        NoCapacity, match=r"Asked: 1 × env\+act with 1 CPU each, 1 × .*Available: node 0: 1 CPU; node 1: 0"
    ):
        plan_that_fits(plan, cpus(1, 0))
    with pytest.raises(NoCapacity, match="Available: no node"):
        check_capacity(plan, [])


def test_replicas_share_accelerators_if_there_is_not_one_for_each():
    plan = planned(Fragment("env act", 6), Fragment("store grad apply"), platform="gpu")
    with pytest.raises(NoCapacity, match=r"6 × env\+act with 1 CPU and 1 GPU each.*node 0: 8 CPU and 1 GPU"):
        check_capacity(plan, [{"CPU": 8, "GPU": 1}])
    for nodes in ([{"CPU": 8, "GPU": 1}], [{"CPU": 8, "GPU": 2}], [{"CPU": 4, "GPU": 1}] * 2 + [{"CPU": 2}]):
        shared = with_shared_gpus(plan, nodes)
        check_capacity(shared, nodes)
        assert replicas(plan_that_fits(shared, nodes[:1]))[1] == 1
    assert with_shared_gpus(plan, [{"CPU": 8, "GPU": 8}]) is plan
    assert with_shared_gpus(plan, [{"CPU": 8}]) is plan  # refused then, with asked and available


def test_learners_that_all_reduce_do_not_share_accelerators():
    plan = planned(Fragment("env act store grad apply", 2), platform="gpu")
    assert with_shared_gpus(plan, [{"CPU": 8, "GPU": 1}]) is plan
