from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tessera import policies
from tessera.errors import TesseraError
from tessera.graph.operators import OPERATORS
from tessera.graph.policy import Cut, Fragment, Policy

ALL = "env act store grad apply"


def test_an_operator_that_no_fragment_holds_is_named():
    with pytest.raises(TesseraError, match=r"operator 'grad' in 0 fragments.*exactly one"):
        Policy("p", (Fragment("env act store apply"),))


def test_an_operator_that_two_fragments_hold_is_named():
    with pytest.raises(TesseraError, match="operator 'act' in 2 fragments"):
        Policy("p", (Fragment("env act"), Fragment("act store grad apply")))


def test_an_operator_twice_in_one_fragment_is_refused():
    with pytest.raises(TesseraError, match="operator 'env' in 2 fragments"):
        Policy("p", (Fragment(f"env {ALL}"),))


def test_an_unknown_operator_is_answered_with_the_nearest():
    with pytest.raises(TesseraError, match="operator in policy 'p': 'stor': did you mean 'store'"):
        Policy("p", (Fragment("env act stor grad apply"),))


def test_an_unknown_stream_is_answered_with_the_nearest():
    with pytest.raises(TesseraError, match="stream in policy 'p': 'param': did you mean 'params'"):
        Policy("p", (Fragment(ALL),), {"param": Cut(lag=1)})


def refused(match: str, *fragments: Fragment, **cuts: Cut) -> None:
    with pytest.raises(TesseraError, match=match):
        Policy("p", fragments or (Fragment(ALL),), cuts)


def test_only_params_and_priorities_may_lag_and_never_by_less_than_nothing():
    refused("stream 'params' with lag -1", params=Cut(lag=-1))
    refused("stream 'gradients' with lag 1: only 'params' lags", gradients=Cut(lag=1))
    assert Policy("p", (Fragment(ALL),), {"params": Cut(lag=2)}).cut("params").lag == 2
    assert Policy("p", (Fragment(ALL),), {"priorities": Cut(lag=1)}).cut("priorities").lag == 1


def test_a_discipline_that_there_is_not_is_answered_with_the_nearest():
    refused("mode of stream 'params' in policy 'p': 'sink': did you mean 'sync'", params=Cut(mode="sink"))
    refused("route of stream 'updates' in policy 'p': 'meen': did you mean 'mean'", updates=Cut(route="meen"))
    refused("codec of stream 'gradients' in policy 'p': 'treshold'", gradients=Cut(codec="treshold"))


def test_streams_of_one_steps_dialogue_are_never_async():
    for stream in ("timesteps", "actions", "summary", "norm", "updates"):
        refused(f"stream '{stream}' cannot be async", **{stream: Cut("async")})


def test_only_experience_waits_for_the_first_few_and_for_no_more_than_there_are():
    actors, learner = Fragment("env act", 3), Fragment("store grad apply")
    refused("stream 'params' has mode 'first'", params=Cut("first", first=1))
    refused("waits for the first 4 of 3 actors", actors, learner, experience=Cut("first", first=4))
    refused("waits for the first 0 of 3 actors", actors, learner, experience=Cut("first"))


def test_only_async_experience_that_travels_is_taken_by_the_group():
    actors, learner = Fragment("env act", 3), Fragment("store grad apply")
    refused("stream 'experience' takes 2 groups: only async", actors, learner, experience=Cut(take=2))
    refused("stream 'params' takes 2 groups: only async", actors, learner, params=Cut("async", take=2))
    refused("stream 'experience' takes -1 groups", actors, learner, experience=Cut("async", take=-1))
    together = (Fragment("env act store grad apply", 2),)
    for cut in (Cut("async", take=1), Cut("first", first=1)):
        refused("put `act` and `store` in two fragments", *together, experience=cut, params=Cut("async"))


@pytest.mark.parametrize("name", ["single_learner_coarse", "multi_learner_coarse", "distributed_replay"])
def test_policies_that_wait_for_all_take_all(name):
    with pytest.raises(TesseraError, match="takes 2 groups: only async"):
        policies.get(name, take=2)


def test_numbers_of_a_discipline_that_make_no_sense_are_refused():
    for cut in (Cut(capacity=0), Cut(every=0), Cut(threshold=-1.0), Cut(carries="moments")):
        refused("must be at least 1, threshold", updates=cut)


def test_disciplines_that_depend_on_each_other_are_checked_together():
    apart = (Fragment("env act store grad", 2), Fragment("apply"))
    actors = (Fragment("env act", 2), Fragment("store grad apply"))
    refused("local gradients never reach `apply`", *apart, gradients=Cut(route="local"))
    refused("peers exchange updates by route 'mean' or 'shared'", updates=Cut(route="mean"))
    refused("every replica can gather experience only where", *actors, experience=Cut(route="gather"))
    refused("with async gradients params must be async too", *apart, gradients=Cut("async"))
    refused("not waited for params must be async", *actors, experience=Cut("async"))


def test_replicas_and_devices_that_cannot_be_counted_are_refused():
    with pytest.raises(TesseraError, match=r"env\+act\+store\+grad\+apply asks for 0 replicas"):
        Policy("p", (Fragment(ALL, replicas=0),))
    with pytest.raises(TesseraError, match="on -1 devices"):
        Policy("p", (Fragment(ALL, devices=-1),))


def test_processes_are_between_one_and_as_many_as_replicas_and_cores_at_least_one():
    assert Fragment(ALL, replicas=4, processes=2).runs == 2
    refused("asks for 3 processes for 2 replicas", Fragment(ALL, replicas=2, processes=3))
    refused("asks for 0 processes", Fragment(ALL, replicas=2, processes=0))
    refused("asks for 0 cores", Fragment(ALL, cores=0))


def test_a_fragment_names_its_operators_in_the_order_of_the_graph():
    assert Fragment("apply env grad").names == ("env", "grad", "apply")
    assert Fragment("apply env").title == "env+apply"


def test_a_policy_knows_where_each_operator_is_at_home():
    policy = Policy("p", (Fragment("env act"), Fragment("store"), Fragment("grad apply")))
    assert [policy.home(o) for o in OPERATORS] == [0, 0, 1, 2, 2]


@pytest.mark.parametrize("name", policies.names())
def test_a_named_policy_is_called_what_its_file_is_called_and_says_what_it_is(name):
    policy = policies.get(name)
    assert policy.name == name
    assert policy.summary
    assert policy.mirrors


@pytest.mark.parametrize("name", policies.names())
def test_a_policy_file_is_at_most_fifty_lines_of_data_without_loops(name):
    source = Path(policies.__file__).with_name(f"{name}.py").read_text()
    assert len(source.splitlines()) <= 50
    loops = (ast.For, ast.While, ast.comprehension)
    assert not [node for node in ast.walk(ast.parse(source)) if isinstance(node, loops)]


def test_an_unknown_policy_is_answered_with_the_nearest():
    with pytest.raises(TesseraError, match="unknown policy 'fusd': did you mean 'fused'"):
        policies.get("fusd")
