"""Projections of a program small enough to write down: one Op for each edge of the graph."""

from __future__ import annotations

from typing import Any

import pytest

from tessera import policies
from tessera.algorithms.contract import State, View
from tessera.graph.plan import Needs, Plan, make_plan
from tessera.graph.policy import Fragment, Policy
from tessera.program.nodes import Collective, Node, Op, Recv, Repeat, Send
from tessera.program.project import project

NEEDS = Needs("small", "small", device_env=True, batch=None, priorities=False, absorbs=False)


def op(operator: str, reads: str, writes: str, floating: bool = False) -> Op:
    return Op(operator, lambda *x: x, tuple(reads.split()), tuple(writes.split()), floating=floating)


PROGRAM: tuple[Node, ...] = (
    Repeat("t", 4, (op("act", "acting timesteps", "actions"), op("env", "actions", "timesteps"))),
    op("act", "timesteps", "experience"),
    op("store", "experience", "samples"),
    Repeat(
        "m",
        2,
        (
            op("grad", "view samples", "gradients"),
            op("apply", "state gradients", "state"),
            op("apply", "state", "view"),
        ),
    ),
    op("apply", "view", "acting", floating=True),
)


def plan(*fragments: Fragment, available: int = 1) -> Plan:
    return make_plan(Policy("p", fragments), NEEDS, 16, available=available)


def shape(nodes: tuple[Node, ...]) -> list[Any]:
    """A program as plain data: lists are loops."""
    return [shape(n.body) if isinstance(n, Repeat) else described(n) for n in nodes]


def described(node: Node) -> str:
    match node:
        case Op():
            return f"{node.operator}: {' '.join(node.reads)} -> {' '.join(node.writes)}"
        case Send() | Recv():
            return f"{type(node).__name__.lower()} {node.slot}"
        case Collective():
            return f"{node.route} {node.slot}"
    raise TypeError(node)


def test_with_nothing_cut_there_is_no_exchange_and_the_view_is_read_off_the_state():
    whole = plan(Fragment("env act store grad apply"))
    assert shape(project(PROGRAM, whole, 0)) == [
        ["act: acting timesteps -> actions", "env: actions -> timesteps"],
        "act: timesteps -> experience",
        "store: experience -> samples",
        ["grad: state samples -> gradients", "apply: state gradients -> state"],
        "apply: state -> acting",
    ]


def test_actors_send_experience_where_they_made_it_and_receive_params_where_they_are_published():
    coarse = make_plan(policies.get("single_learner_coarse"), NEEDS, 16)
    assert shape(project(PROGRAM, coarse, 0)) == [
        ["act: acting timesteps -> actions", "env: actions -> timesteps"],
        "act: timesteps -> experience",
        "send experience",
        "recv acting",
    ]
    assert shape(project(PROGRAM, coarse, 1)) == [
        "recv experience",
        "store: experience -> samples",
        ["grad: state samples -> gradients", "apply: state gradients -> state"],
        "apply: state -> acting",
        "send acting",
    ]


def test_an_environment_server_is_a_projection_with_an_exchange_on_every_step():
    fine = plan(Fragment("env", 2), Fragment("act store grad apply"))
    assert shape(project(PROGRAM, fine, 0)) == [["recv actions", "env: actions -> timesteps", "send timesteps"]]
    assert shape(project(PROGRAM, fine, 1))[0] == [
        "act: acting timesteps -> actions",
        "send actions",
        "recv timesteps",
    ]


def test_a_server_gets_gradients_and_gives_the_view_and_act_beside_grad_uses_it():
    central = plan(Fragment("env act store grad", 2), Fragment("apply"))
    assert shape(project(PROGRAM, central, 0))[3:] == [
        ["grad: view samples -> gradients", "send gradients", "recv view"],
        "apply: view -> acting",
    ]
    assert shape(project(PROGRAM, central, 1)) == [
        ["recv gradients", "apply: state gradients -> state", "apply: state -> view", "send view"],
    ]


def test_replicas_of_one_fragment_exchange_among_themselves_where_grad_stood():
    multi = plan(Fragment("env act store grad apply", 2))
    assert shape(project(PROGRAM, multi, 0))[3] == [
        "grad: state samples -> gradients",
        "send gradients",
        "recv gradients",
        "apply: state gradients -> state",
    ]


def test_devices_of_one_replica_average_gradients_inside_of_the_program():
    spread = plan(Fragment("env act store grad apply", devices=2), available=2)
    assert shape(project(PROGRAM, spread, 0))[3] == [
        "grad: state samples -> gradients",
        "mean gradients",
        "apply: state gradients -> state",
    ]


def test_a_loop_that_a_fragment_has_no_part_in_is_left_out():
    coarse = make_plan(policies.get("single_learner_coarse"), NEEDS, 16)
    assert not [n for n in project(PROGRAM, coarse, 1) if isinstance(n, Repeat) and n.index == "t"]


def test_every_send_has_a_receiver_on_the_same_channel():
    apart = plan(Fragment("env"), Fragment("act", 2), Fragment("store"), Fragment("grad", 2), Fragment("apply"))

    def ends(nodes: tuple[Node, ...], kind: type) -> list[tuple[str, int]]:
        inner = [e for n in nodes if isinstance(n, Repeat) for e in ends(n.body, kind)]
        return inner + [(n.slot, n.channel) for n in nodes if isinstance(n, kind)]

    programs = [project(PROGRAM, apart, i) for i in range(5)]
    sent, received = ([e for p in programs for e in ends(p, kind)] for kind in (Send, Recv))
    assert sorted(sent) == sorted(received)
    # nothing in this small program makes a summary
    used = {(c.slot, k) for k, c in enumerate(apart.channels) if c.slot != "summary"}
    assert set(sent) == used


def test_the_view_that_is_read_off_the_state_leaves_the_optimiser_behind():
    reader = Op("grad", lambda view, x: (view, x), ("view", "samples"), ("gradients", "metrics"))
    (own,) = project((reader,), plan(Fragment("env act store grad apply")), 0)
    assert isinstance(own, Op)
    view, passed = own.function(State("params", "optimizer", "target", "statistics", "clock"), "samples")
    assert view == View("params", "target", "statistics", "clock")
    assert passed == "samples"


def test_only_ops_and_loops_can_be_projected():
    with pytest.raises(TypeError, match="Ops and Repeats only"):
        project((Send("actions", 0),), plan(Fragment("env act store grad apply")), 0)
