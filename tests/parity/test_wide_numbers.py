"""In float64 nothing is rounded to 32 bits on its way, so that even what amplifies rounding agrees to 1e-9."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from jax.interpreters.partial_eval import dce_jaxpr
from matrix import ALGORITHMS, ANY, ENV, assert_parity, colouring

import tessera
from tessera import policies
from tessera.engines.replica.replica import make_training
from tessera.planning.prepare import prepare_plan
from tessera.program.faults import Fault
from tessera.program.nodes import HOST, Every, Node, Op, Repeat
from tessera.program.shapes import slot_shapes

pytestmark = pytest.mark.usefixtures("x64")

# a share of 5 / 7 of the rows is learned from, which no binary fraction is
REMEMBERING = dataclasses.replace(ALGORITHMS["ppo"], unroll=7, core="lstm", core_width=4, burn_in=2)
ANY["ppo_lstm_burn_in"] = REMEMBERING
COLOURINGS = (
    "single_learner_coarse:actors=2",
    "multi_learner:learners=3",
    "all apart",
    "central:workers=2,shards=2",
    "crossed",
)


@pytest.mark.parametrize(
    "policy", [*COLOURINGS[:3], *(pytest.param(text, marks=pytest.mark.slow) for text in COLOURINGS[3:])]
)
def test_an_lstm_with_burn_in_and_normalised_rewards_and_observations_keeps_parity(policy):
    assert_parity("ppo_lstm_burn_in", colouring(policy), updates=6)


TASKS: dict[str, tuple[Any, str]] = {
    **{name: (algorithm, ENV) for name, algorithm in ANY.items()},
    "q_learning": (tessera.QLearning(unroll=7, widths=(8,)), ENV),
    "sarsa": (tessera.QLearning(unroll=7, widths=(8,), kind="sarsa"), ENV),
    "masked sarsa": (tessera.QLearning(unroll=7, widths=(8,), kind="sarsa"), "gymnasium:CartPole-v1"),
    "masked a2c": (ALGORITHMS["a2c"], "gymnasium:CartPole-v1"),
    "masked dqn": (ALGORITHMS["dqn"], "gymnasium:CartPole-v1"),
    "continuous ppo": (ALGORITHMS["ppo"], "gymnax:Pendulum-v1"),
    "dpg": (tessera.DPG(unroll=2, draws=2, batch=48, capacity=480, warmup=2, widths=(8,)), "gymnax:Pendulum-v1"),
}
MOVING = {
    "broadcast_in_dim", "concatenate", "copy", "dynamic_slice", "dynamic_update_slice", "expand_dims", "gather", "pad",
    "reshape", "rev", "scatter", "select_n", "slice", "split", "squeeze", "stack", "transpose", "unstack",
    "cond", "custom_jvp_call", "jit", "pjit", "scan", "while",
}  # fmt: skip
"""Primitives that move numbers and do not round them, or that hold others."""


def ops(nodes: tuple[Node, ...]) -> Iterator[Op]:
    for node in nodes:
        if isinstance(node, Repeat | Every):
            yield from ops(node.body)
        elif isinstance(node, Op):
            yield node


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a program, those of inner ones too."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if hasattr(inner, "jaxpr"):
                    yield from equations(inner.jaxpr)


def without_faults(function: Any, given: list[Any]) -> Any:
    """The program of a function, without what only looks for numbers that are not finite: it rounds nothing."""

    def values(*arguments: Any) -> list[Any]:
        return [value for value in function(*arguments) if not isinstance(value, Fault)]

    traced = jax.make_jaxpr(values)(*given).jaxpr
    return dce_jaxpr(traced, [True] * len(traced.outvars))[0]


@pytest.mark.parametrize("name", TASKS)
def test_what_acts_and_learns_in_float64_computes_nothing_in_32_bits(name):
    algorithm, env = TASKS[name]
    bound, made, plan = prepare_plan(
        algorithm, env, policies.get("fused", devices=1), envs=12, groups=6, precision="f64"
    )
    training = make_training(plan, bound, made)
    shapes = slot_shapes(training, plan)
    narrow = []
    for op in ops((*training.start(), *training.updates())):
        if op.kind == HOST or not set(op.reads) <= set(shapes):
            continue
        given = [shapes[slot] for slot in op.reads]
        shapes |= zip(op.writes, jax.eval_shape(op.function, *given), strict=True)
        if op.operator in ("env", "store") or op.writes[0] in (
            "lags",
            "report_grad",
        ):  # environments, and what is shown
            continue
        narrow += [
            (op.writes[0], str(equation))
            for equation in equations(without_faults(op.function, given))
            if equation.primitive.name not in MOVING
            and any(getattr(out.aval, "dtype", None) == np.float32 for out in equation.outvars)
        ]
    assert narrow == []
