"""All colourings: how many there are, which are legal, that they learn the same, and that none is known by name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import tessera.planning
from tessera import A2C, policies
from tessera.engines.serial import SerialEngine
from tessera.graph.operators import OPERATORS
from tessera.planning.algorithm_policy_pairs import refusal
from tessera.planning.colourings import Colouring, Limits, colourings, may_be_asynchronous, partitions
from tessera.planning.prepare import prepare_plan

ENV = "gymnax:CartPole-v1"
SMALL = A2C(unroll=4, widths=(8,), learning_rate=0.01)


def test_five_operators_can_be_put_together_in_52_ways():
    found = list(partitions())
    assert len(found) == len(set(found)) == 52
    assert found[0] == (tuple(OPERATORS),)
    assert found[-1] == tuple((operator,) for operator in OPERATORS)
    assert all(sorted(o for fragment in p for o in fragment) == sorted(OPERATORS) for p in found)
    assert found == list(partitions())


def test_replicas_are_powers_of_two_and_no_more_than_groups():
    limits = Limits(groups=6, cores=2)
    assert limits.replicas(["env", "act"]) == [1, 2, 4, 6]  # environments may sleep
    assert limits.replicas(["grad"]) == [1, 2]
    assert limits.devices(["grad"], 1) == [1]
    devices = Limits(groups=8, cores=2, accelerators=4)
    assert devices.devices(["grad", "apply"], 1) == [1, 2, 4]
    assert devices.devices(["grad", "apply"], 2) == [1, 2]
    assert devices.devices(["env"], 1) == [1]


def test_all_kinds_of_policies_are_among_the_colourings():
    found = {c.policy().name for p in partitions() for c in colourings(p, Limits(groups=8, cores=2, accelerators=2))}
    assert {
        "env+act+store+grad+apply",
        "env+act+store+grad+apply@1x2",
        "env+act+store+grad+apply@2",
        "env+act+store+grad+apply@2:gather",
        "env+act@8/store+grad+apply",
        "env@8/act+store+grad+apply",
        "env+act+store+grad@4/apply@2",
        "env@2/act@2/store@2/grad@2/apply@2",
    } <= found
    assert not any("async" in name for name in found)


def test_only_what_crosses_between_fragments_can_do_without_waiting():
    loose = [p for p in partitions() if may_be_asynchronous(p)]
    assert (("env", "act"), ("store", "grad", "apply")) in loose
    assert (("env", "act", "store", "grad"), ("apply",)) in loose
    assert (("env",), ("act", "store", "grad", "apply")) not in loose
    assert (("env", "act", "apply"), ("store", "grad")) not in loose
    assert list(colourings((tuple(OPERATORS),), Limits(8, 2), asynchronous=True)) == []


def test_every_colouring_has_a_plan_and_a_program():
    two = [Colouring(p, ((2, 1),) * len(p)).policy() for p in partitions()]
    assert {p.name: why for p in two if (why := refusal(SMALL, ENV, p))} == {}


def trained(policy: str) -> list[np.ndarray]:
    bound, env, plan = prepare_plan(SMALL, ENV, policy, envs=8, groups=8, lag=1, precision="f64", engine="serial")
    engine = SerialEngine(plan, bound, env, seed=3, horizon=3)
    try:
        engine.start()
        engine.advance(3)
        return [np.asarray(x) for x in jax.tree.leaves(engine.state().params)]
    finally:
        engine.close()


@pytest.mark.usefixtures("x64")
def test_colourings_that_nobody_has_named_learn_the_same():
    expected = trained("env+act+store+grad+apply")
    for name in ("env+grad@2/act+store@4/apply@2", "env@2/act+apply/store+grad@2"):
        assert policies.named(policies.parse(name))[1] == name
        for ours, theirs in zip(trained(name), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)


def test_no_policy_is_known_by_name_where_runs_are_planned():
    names = re.compile(rf"\b({'|'.join(name for name in policies.names() if name != 'environments')})\b(?!_)")
    found = []
    for path in Path(tessera.planning.__path__[0]).rglob("*.py"):
        source = path.read_text()
        texts = [
            n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant) and isinstance(n.value, str)
        ]
        found += [f"{path.name}: {text}" for text in texts if names.search(text) or text == "environments"]
    assert found == []
