"""How values are split where they are made and merged where they are wanted."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.channels.routes import Route
from tessera.graph.plan import Needs, make_plan
from tessera.graph.policy import Fragment, Policy

NEEDS = Needs("small", "small", device_env=True, batch=None, priorities=True, absorbs=True)


def routes(*fragments: Fragment) -> dict[str, Route]:
    """The route of each slot that crosses, in a plan of 8 groups."""
    plan = make_plan(Policy("p", fragments), NEEDS, 16, groups=8)
    return {c.slot: Route(plan, c) for c in plan.channels}


def sent(route: Route, values: list[np.ndarray]) -> list[np.ndarray]:
    """What every receiver ends up with when sender p sends `values[p]`."""
    return [
        route.merge({p: route.part(p, q, values[p]) for p in range(route.senders) if route.linked(p, q)})
        for q in range(route.receivers)
    ]


@pytest.mark.parametrize(("actors", "stores"), [(1, 1), (3, 1), (1, 3), (2, 3), (3, 2), (5, 8)])
def test_experience_reaches_the_replica_that_holds_its_group_in_the_order_of_groups(actors, stores):
    route = routes(Fragment("env act", actors), Fragment("store", stores), Fragment("grad apply"))["experience"]
    held = [np.asarray(g) for g in route.plan.fragments[0].groups]
    wanted = [list(g) for g in route.plan.fragments[1].groups]
    assert [got.tolist() for got in sent(route, held)] == wanted


def test_a_mean_over_replicas_is_weighted_by_the_groups_they_hold():
    route = routes(Fragment("env act store grad", 3), Fragment("apply"))["gradients"]
    assert [len(g) for g in route.plan.fragments[0].groups] == [3, 2, 3]
    (mean,) = sent(route, [np.float64(8), np.float64(16), np.float64(32)])
    assert mean == pytest.approx((3 * 8 + 2 * 16 + 3 * 32) / 8)


def test_a_summary_is_gathered_whole_by_everyone_in_the_order_of_groups():
    route = routes(Fragment("env act store grad apply", 3))["summary"]
    held = [np.asarray(g) for g in route.plan.fragments[0].groups]
    assert [got.tolist() for got in sent(route, held)] == [list(range(8))] * 3


def test_params_are_copied_to_everyone():
    route = routes(Fragment("env act", 3), Fragment("store grad apply"))["acting"]
    assert sent(route, [np.float64(7)]) == [7, 7, 7]
