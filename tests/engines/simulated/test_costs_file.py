"""Costs files: what is written is read again, and nonsense is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tessera import TesseraError
from tessera.engines.simulated.costs import Costs, ExchangeCosts, LinkCosts, Timing, Work
from tessera.engines.simulated.costs_file import costs_from_json, costs_to_json, load_costs

COSTS = Costs(
    ops={"act observed -> actions": ((1, 0.1), (8, 0.4))},
    dispatch=0.01,
    links=LinkCosts(latency=0.1, cpu_per_byte=1e-9),
    exchanges={"send view": ExchangeCosts(fixed=0.1, per_byte=1e-9)},
    after_wait={"send view": 0.2},
    factors={"play": 0.9},
    timings={"env actions -> timesteps": (Timing(8, 1, (Work(1.0, 0.5), Work(2.0, 1.5))),)},
    per_node=1e-5,
    remote_links=LinkCosts(cpu_per_message=0.001),
    slowdown=(1.0, 0.9),
    device_switches=((2, 0.002), (8, 0.001)),
    process_memory=10**8,
    fragment_memory={"env+act": 2 * 10**8},
)


def test_costs_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(costs_to_json(COSTS)))
    assert load_costs(path) == (COSTS, 0)
    path.write_text(json.dumps({"costs": costs_to_json(COSTS), "machine": {"accelerators": 2}, "taken": 3}))
    assert load_costs(path) == (COSTS, 2)
    assert costs_from_json({}, "here") == Costs()


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ([], "must be a table"),
        ({"op": {}}, "unknown key in here: 'op': did you mean 'ops'?"),
        ({"ops": {"act": [[1, -0.5]]}}, "-0.5 is not a number of at least 0"),
        ({"ops": {"act": [[1, 0.5], [1, 0.7]]}}, "the first number must grow from point to point"),
        ({"ops": {"act": [[0, 0.5]]}}, "0 is not a whole number of at least 1"),
        ({"ops": {"act": [[1]]}}, r"must be a list of 2, not \[1\]"),
        ({"dispatch": "slow"}, "dispatch: 'slow' is not a number"),
        ({"dispatch": float("nan")}, "dispatch: nan is not a number"),
        ({"dispatch": True}, "dispatch: True is not a number"),
        ({"links": {"delay": 1}}, "unknown key in here: links: 'delay'"),
        ({"slowdown": [1, 0]}, "0 is not a number of more than 0"),
        ({"exchanges": {"send view": {"each": 1}}}, r"unknown key in here: exchanges\['send view'\]: 'each'"),
        ({"exchanges": {"send view": {"fixed": -1}}}, "-1 is not a number of at least 0"),
        ({"after_wait": {"send view": None}}, "None is not a number"),
        ({"timings": {"env": [{"envs": 8, "threads": 1, "calls": []}]}}, "has no calls"),
        ({"timings": {"env": []}}, "has no timings"),
        ({"timings": {"env": [{"envs": 8}]}}, "needs 'threads' for each timing"),
        ({"timings": {"env": [[8, 1, []]]}}, "must be a table"),
        ({"fragment_memory": {"env+act": "much"}}, r"fragment_memory\['env\+act'\]: 'much' is not a number"),
    ],
)
def test_nonsense_is_refused(data: Any, sentence: str):
    with pytest.raises(TesseraError, match=sentence):
        costs_from_json(data, "here")


def test_a_file_that_is_none_is_refused(tmp_path):
    with pytest.raises(TesseraError, match="does not exist"):
        load_costs(tmp_path / "no.json")
    (tmp_path / "odd.json").write_text("{")
    with pytest.raises(TesseraError, match="is not JSON"):
        load_costs(tmp_path / "odd.json")


def test_the_memory_of_a_process_is_that_of_one_with_these_operators_or_of_the_nearest():
    assert COSTS.process_bytes(("env", "act")) == 2 * 10**8
    assert replace(COSTS, fragment_memory={}).process_bytes(("env",)) == 10**8
    several = replace(COSTS, fragment_memory={"env": 1, "act+store+grad+apply": 9, "store+grad+apply": 8, "apply": 2})
    nearest = {"store+grad+apply": 8, "env+act+store": 1, "grad+apply": 8, "apply": 2, "act+store+grad": 9}
    assert {title: several.process_bytes(title.split("+")) for title in nearest} == nearest
