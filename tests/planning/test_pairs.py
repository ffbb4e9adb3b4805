"""The table of pairs is computed, not written by hand."""

from __future__ import annotations

import json
import time

import pytest

from tessera import algorithms, policies
from tessera.cli.main import main
from tessera.planning.algorithm_policy_pairs import Pair, all_pairs, render, variants

PAIRS = (
    Pair("ppo", "fused"),
    Pair("dqn", "fused", "no table"),
    Pair("ppo", "central"),
    Pair("dqn", "central", "no table"),
)


@pytest.fixture(scope="module")
def found() -> list[Pair]:
    begun = time.monotonic()
    pairs = all_pairs()
    assert time.monotonic() - begun < 30
    return pairs


def test_every_algorithm_meets_every_policy_on_a_task_that_it_can_play(found):
    met = {(p.algorithm, p.policy.partition(":")[0]) for p in found}
    assert met == {(a, p) for a in algorithms.ALGORITHMS for p in policies.names()}
    tasks = {p.algorithm: p.env for p in found}
    assert tasks["ppo"] == "gymnax:CartPole-v1"
    assert tasks["dpg"] == "gymnax:Pendulum-v1"
    assert tasks["mappo"] == "jaxmarl:MPE_simple_spread_v3"
    assert [p for p in found if p.refused] == []


def test_other_modes_and_flags_of_a_policy_are_policies_of_their_own(found):
    shown = {p.policy for p in found}
    assert {
        "central:mode=async",
        "single_learner_coarse:mode=first",
        "gorila:mode=sync",
        "gorila:bundled=true",
    } <= shown
    assert "central:mode=first" not in shown  # there is no such policy
    assert len({text for text, _ in variants()}) == len(list(variants()))


def test_a_pair_that_is_refused_says_why():
    refused = {p.algorithm: p.refused for p in all_pairs("gymnax:Pendulum-v1")}
    assert "needs one discrete action" in refused["dqn"]
    assert not refused["ppo"]
    assert not refused["dpg"]


def test_reasons_are_listed_once_below_the_table():
    lines = render(PAIRS).splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["policy", "ppo", "dqn"],
        ["fused", "runs", "no", "[1]"],
        ["central", "runs", "no", "[1]"],
    ]
    assert lines[3:] == ["", "planned for gymnax:CartPole-v1 (ppo, dqn)", "[1] no table"]


def test_the_table_is_markdown_or_json_too():
    assert render(PAIRS, "markdown").splitlines()[:3] == [
        "| policy | ppo | dqn |",
        "| --- | --- | --- |",
        "| `fused` | runs | no [1] |",
    ]
    rows = json.loads(render(PAIRS, "json"))
    assert rows[1] == {
        "algorithm": "dqn", "policy": "fused", "env": "gymnax:CartPole-v1", "runs": False, "reason": "no table",
    }  # fmt: skip


def test_the_command_prints_the_table(capsys, monkeypatch):
    monkeypatch.setattr("tessera.planning.algorithm_policy_pairs.all_pairs", lambda env: [Pair("ppo", env)])
    main(["pairs", "--env", "here", "--format", "json"])
    assert json.loads(capsys.readouterr().out)[0]["policy"] == "here"
