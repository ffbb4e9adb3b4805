from __future__ import annotations

import json
from typing import Any

import pytest

from tessera import policies
from tessera.errors import TesseraError
from tessera.graph.channel import Channel
from tessera.graph.draw import render
from tessera.graph.operators import OPERATORS
from tessera.graph.plan import Needs, Placement, Plan, make_plan
from tessera.graph.policy import Fragment, Policy

NEEDS = Needs("dqn", "cartpole", device_env=True, batch=32, priorities=True, absorbs=True)
APART = Policy("apart", tuple(Fragment(o) for o in OPERATORS))
COARSE = policies.get("single_learner_coarse", actors=3)
FUSED = policies.get("fused", devices=1)
CENTRAL = Policy("central", (Fragment("env act store grad", 2), Fragment("apply")))


def plan(policy: Policy, available: int = 1) -> Plan:
    return make_plan(policy, NEEDS, 16, available=available)


def frozen(value: Any) -> Any:
    """JSON has lists only; plans have tuples only."""
    return tuple(frozen(v) for v in value) if isinstance(value, list) else value


def from_json(data: dict[str, Any]) -> Plan:
    fragments = tuple(Placement(**{k: frozen(v) for k, v in f.items()}) for f in data["fragments"])
    channels = tuple(Channel.from_json(c) for c in data["channels"])
    plain = {k: frozen(v) for k, v in data.items() if k != "colouring"}  # what the plan was made from
    return Plan(**{**plain, "fragments": fragments, "channels": channels})


def rows(made: Plan) -> list[str]:
    """Lines of the table, one space between cells."""
    return [" ".join(line.split()) for line in render(made).splitlines()]


def test_the_table_has_a_row_for_each_fragment_and_each_channel():
    shown = rows(plan(COARSE))
    assert "plan dqn on cartpole under single_learner_coarse (local engine)" in shown
    assert "envs 16 in 8 groups of 2" in shown
    assert "env+act 3 3 shared 1 1 cpu 3 2 3" in shown
    assert "store+grad+apply 1 1 shared 1 1 cpu 8" in shown
    assert "experience env+act × 3 store+grad+apply × 1 reshard every unroll queue sync 0 1 -" in shown
    assert "params store+grad+apply × 1 env+act × 3 copy every update queue sync 0 1 -" in shown


def test_the_table_shows_the_discipline_of_each_channel():
    shown = rows(plan(policies.get("central", mode="async", lag=3)))
    assert "gradients env+act+store+grad × 2 apply × 1 one by one every minibatch queue async ≤ 3 2 -" in shown
    assert "params apply × 1 env+act+store+grad × 2 copy every minibatch register async ≤ 3 - -" in shown
    shown = rows(plan(policies.get("decentralised", threshold=0.25, lag=None)))
    assert any(row.endswith("mean every minibatch collective async any 64 threshold 0.25") for row in shown)
    shown = rows(make_plan(policies.get("single_learner_coarse", actors=2, mode="first", first=1), NEEDS, 16))
    assert "envs 16 in 8 groups of 2; an update learns from 4 groups" in shown
    assert any("queue first 1 ≤ 0 2 -" in row for row in shown)


def test_the_table_shows_processes_cores_and_threads(monkeypatch):
    monkeypatch.setattr("tessera.graph.plan.cores", lambda: 8)
    fragments = (Fragment("env act", 4, cores=1, processes=2), Fragment("store grad apply"))
    shown = rows(plan(Policy("mine", fragments)))
    assert "env+act 4 2 1 each 1 1 cpu 4 4" in shown
    assert "store+grad+apply 1 1 shared 6 1 cpu 8" in shown
    assert "env+act+store+grad+apply 1 this one shared 8 1 cpu 8" in rows(plan(FUSED))


def test_the_table_says_when_nothing_is_cut_and_what_happens_between_devices():
    assert "no stream is cut" in render(plan(FUSED)).splitlines()
    spread = render(plan(policies.get("fused", devices=2), available=2))
    assert "gradients: mean, summary: gather over 2 devices" in spread


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ("single_learner_coarse", "none"),
        ("single_learner_coarse:lag=2", "act uses the params of 2 updates ago"),
        ("single_learner_coarse:mode=async", "params are any number of updates behind"),
        ("central:mode=async,lag=1", "params are 1 update behind at the most"),
        ("decentralised:lag=1", "peers are 1 update behind at the most"),
        ("hogwild", "peers are any number of updates behind"),
    ],
)
def test_the_table_tells_the_lag(policy, told):
    assert f"lag       {told}" in render(plan(policies.parse(policy))).splitlines()


def test_the_table_tells_the_lag_of_host_environments():
    lagging = make_plan(COARSE, Needs("dqn", "cartpole", False, 32, True, True), 16)
    assert "act uses the params of 1 update ago" in render(lagging)


def arrows(made: Plan, kind: str) -> set[tuple[str, str, str]]:
    """(source, stream, target) of each arrow of a kind in a drawing."""
    drawn = [line.split(kind) for line in render(made, "mermaid").splitlines() if kind in line]
    return {(a.strip(), *(x.strip() for x in b.strip("|").split("|"))) for a, b in drawn}


@pytest.mark.parametrize("policy", [APART, COARSE, CENTRAL, FUSED, *map(policies.get, policies.names())], ids=str)
def test_mermaid_draws_every_cut_stream_thick_and_no_other(policy):
    made = plan(policy)
    drawn = {(source, stream.split(",")[0], target) for source, stream, target in arrows(made, "==>")}
    assert drawn == {(c.made_by, c.stream, c.wanted_by) for c in made.channels}


@pytest.mark.parametrize("policy", [APART, COARSE, CENTRAL, FUSED, *map(policies.get, policies.names())], ids=str)
def test_mermaid_draws_what_flows_within_a_fragment_thin(policy):
    made = plan(policy)
    assert all(made.home(source) == made.home(target) for source, _, target in arrows(made, "-->"))
    needed = {"timesteps", "actions", "experience", "samples", "priorities", "gradients", "params"}
    assert {stream.split(",")[0] for kind in ("-->", "==>") for _, stream, _ in arrows(made, kind)} >= needed


def test_mermaid_leaves_out_streams_that_this_algorithm_has_no_use_for():
    plain = Needs("dqn", "cartpole", device_env=True, batch=32, priorities=False, absorbs=False)
    without = {stream for _, stream, _ in arrows(make_plan(FUSED, plain, 16), "-->")}
    assert {stream for _, stream, _ in arrows(plan(FUSED), "-->")} - without == {"priorities", "summary"}


def test_mermaid_shows_that_act_beside_grad_uses_the_params_that_grad_was_sent():
    assert ("grad", "params", "act") in arrows(plan(CENTRAL), "-->")
    assert ("apply", "params", "act") in arrows(plan(FUSED), "-->")


def test_mermaid_says_which_streams_are_not_waited_for():
    drawn = arrows(plan(policies.get("single_learner_coarse", mode="async")), "==>")
    assert drawn == {("act", "experience, async", "store"), ("apply", "params, async", "act")}


def test_mermaid_puts_every_operator_in_the_box_of_its_fragment():
    lines = [line.strip() for line in render(plan(COARSE), "mermaid").splitlines()]
    assert lines[0] == "flowchart LR"
    assert lines[1:5] == ['subgraph f0["env+act × 3"]', "env", "act", "end"]
    assert lines[5:10] == ['subgraph f1["store+grad+apply × 1"]', "store", "grad", "apply", "end"]


@pytest.mark.parametrize("policy", [APART, COARSE, CENTRAL, FUSED], ids=lambda p: p.name)
def test_a_plan_survives_json(policy):
    made = plan(policy)
    assert from_json(json.loads(render(made, "json"))) == made


def test_an_unknown_format_is_answered_with_the_nearest():
    with pytest.raises(TesseraError, match="unknown format 'mermade': did you mean 'mermaid'"):
        render(plan(FUSED), "mermade")
