from __future__ import annotations

import json
from typing import Any

import pytest

from tessera import policies
from tessera.errors import TesseraError
from tessera.graph.draw import render
from tessera.graph.operators import OPERATORS
from tessera.graph.plan import Channel, Needs, Placement, Plan, make_plan
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
    return Plan(**{**data, "fragments": fragments, "channels": tuple(Channel(**c) for c in data["channels"])})


def test_the_table_has_a_row_for_each_fragment_and_each_channel():
    rows = [" ".join(line.split()) for line in render(plan(COARSE)).splitlines()]
    assert "plan dqn on cartpole under single_learner_coarse (serial engine)" in rows
    assert "envs 16 in 8 groups of 2" in rows
    assert "env+act 3 1 cpu 3 2 3" in rows
    assert "store+grad+apply 1 1 cpu 8" in rows
    assert "experience env+act × 3 store+grad+apply × 1 reshard every unroll" in rows
    assert "params store+grad+apply × 1 env+act × 3 copy every update" in rows


def test_the_table_says_when_nothing_is_cut_and_what_happens_between_devices():
    assert "no stream is cut" in render(plan(FUSED)).splitlines()
    spread = render(plan(policies.get("fused", devices=2), available=2))
    assert "gradients: mean, summary: gather over 2 devices" in spread


def test_the_table_tells_the_lag():
    assert "lag       none" in render(plan(COARSE))
    lagging = make_plan(COARSE, Needs("dqn", "cartpole", False, 32, True, True), 16)
    assert "act uses the params of 1 update(s) ago" in render(lagging)


@pytest.mark.parametrize("policy", [APART, COARSE, CENTRAL, FUSED], ids=lambda p: p.name)
def test_mermaid_draws_every_cut_stream_thick_and_no_other(policy):
    made = plan(policy)
    arrows = [line.split() for line in render(made, "mermaid").splitlines() if "|" in line]
    drawn = {(stream.split("|")[1], source, target) for source, stream, target in arrows if "==>" in stream}
    crossing = {(c.stream, c.source, c.target) for c in made.channels}
    assert {(stream, made.home(source), made.home(target)) for stream, source, target in drawn} == crossing


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
