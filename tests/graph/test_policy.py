from __future__ import annotations

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


def test_only_params_may_lag_and_never_by_less_than_nothing():
    with pytest.raises(TesseraError, match="lag -1 on stream 'params'"):
        Policy("p", (Fragment(ALL),), {"params": Cut(lag=-1)})
    with pytest.raises(TesseraError, match="lag 1 on stream 'gradients': only 'params' lags"):
        Policy("p", (Fragment(ALL),), {"gradients": Cut(lag=1)})
    assert Policy("p", (Fragment(ALL),), {"params": Cut(lag=2)}).cut("params").lag == 2


def test_a_mode_that_no_engine_runs_is_refused():
    with pytest.raises(TesseraError, match="stream 'params' has mode 'sink'"):
        Policy("p", (Fragment(ALL),), {"params": Cut(mode="sink")})


def test_replicas_and_devices_that_cannot_be_counted_are_refused():
    with pytest.raises(TesseraError, match=r"env\+act\+store\+grad\+apply asks for 0 replicas"):
        Policy("p", (Fragment(ALL, replicas=0),))
    with pytest.raises(TesseraError, match="on -1 devices"):
        Policy("p", (Fragment(ALL, devices=-1),))


def test_a_sharded_server_is_refused_until_an_engine_runs_it():
    with pytest.raises(TesseraError, match="`apply` alone in a fragment with 2 replicas"):
        Policy("p", (Fragment("env act store grad"), Fragment("apply", replicas=2)))


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


def test_an_unknown_policy_is_answered_with_the_nearest():
    with pytest.raises(TesseraError, match="unknown policy 'fusd': did you mean 'fused'"):
        policies.get("fusd")
