from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from tessera import A2C, DQN, PPO, policies
from tessera.algorithms.contract import Algorithm
from tessera.engines.serial import SerialEngine
from tessera.graph.operators import OPERATORS
from tessera.graph.policy import Policy
from tessera.planning.prepare import prepare_plan
from tessera.program.compile import compile_program
from tessera.program.interpreter import drive
from tessera.program.nodes import HOST, TRACED, WIRING, Node, Op, Repeat, Segment
from tessera.program.project import project
from tessera.program.training_program import Training

FUSED = policies.get("fused", devices=1)
SMALL = A2C(unroll=8, widths=(8,))


def programs(algorithm: Algorithm, env: str, policy: Policy) -> list[tuple[Node, ...]]:
    """The compiled program of every fragment; nothing is traced before it is called."""
    bound, made, plan = prepare_plan(algorithm, env, policy, envs=16)
    updates = Training(bound, made, plan.groups, lag=plan.lag).updates()
    return [compile_program(project(updates, plan, i)) for i in range(len(plan.fragments))]


def operators(nodes: tuple[Node, ...]) -> set[str]:
    """Operators that have Ops among `nodes`, at any depth, segments included."""
    found: set[str] = set()
    for node in nodes:
        match node:
            case Op():
                found.add(node.operator)
            case Repeat():
                found |= operators(node.body)
            case Segment():
                found |= operators(node.nodes)
    return found


def outside(nodes: tuple[Node, ...]) -> list[Op]:
    """Ops that are left to Python."""
    inner = [op for n in nodes if isinstance(n, Repeat) for op in outside(n.body)]
    return inner + [n for n in nodes if isinstance(n, Op)]


def segments(nodes: tuple[Node, ...]) -> list[Segment]:
    inner = [s for n in nodes if isinstance(n, Repeat) for s in segments(n.body)]
    return inner + [n for n in nodes if isinstance(n, Segment)]


@pytest.mark.parametrize("algorithm", [PPO(), A2C(), DQN(prioritised=True)], ids=lambda a: a.name)
def test_fused_with_a_device_environment_is_one_segment_for_all_updates(algorithm):
    ((whole,),) = programs(algorithm, "gymnax:CartPole-v1", FUSED)
    assert isinstance(whole, Segment)
    assert operators((whole,)) == set(OPERATORS)
    (loop,) = whole.nodes
    assert isinstance(loop, Repeat)
    assert loop.count is None


def test_with_a_host_environment_its_steps_and_only_they_stay_in_python():
    (program,) = programs(SMALL, "gymnasium:CartPole-v1", FUSED)
    left = outside(program)
    assert {op.operator for op in left if op.kind == HOST} == {"env"}
    assert any("actions" in op.reads and "timesteps" in op.writes for op in left if op.kind == HOST)
    assert not [op for op in left if op.kind == TRACED]
    assert operators(tuple(segments(program))) >= {"act", "grad", "apply"}


def test_an_actor_with_a_device_environment_plays_its_whole_unroll_in_one_segment():
    actor, _ = programs(SMALL, "gymnax:CartPole-v1", policies.get("single_learner_coarse"))
    (loop,) = actor
    assert isinstance(loop, Repeat)
    assert [type(n).__name__ for n in loop.body] == ["Segment", "Send", "Recv"]


@pytest.fixture(scope="module")
def engine() -> SerialEngine:
    bound, made, plan = prepare_plan(SMALL, "gymnax:CartPole-v1", FUSED, envs=16)
    made_engine = SerialEngine(plan, bound, made, seed=1, horizon=20)
    made_engine.start()
    return made_engine


@pytest.fixture(scope="module")
def beginning(engine: SerialEngine) -> dict[str, Any]:
    """All slots before the first update."""
    return jax.device_get(engine.snapshot())


def test_five_updates_are_two_and_then_three_bit_for_bit(engine, beginning):
    engine.restore(beginning)
    at_once = engine.advance(5)
    whole = jax.device_get(engine.snapshot())
    engine.restore(beginning)
    first, then = engine.advance(2), engine.advance(3)
    parts = jax.device_get(engine.snapshot())
    jax.tree.map(np.testing.assert_array_equal, whole, parts)
    np.testing.assert_array_equal(at_once.metrics["loss"], [*first.metrics["loss"], *then.metrics["loss"]])
    assert any((x != y).any() for x, y in zip(*map(jax.tree.leaves, (whole, beginning)), strict=True))


def test_reports_have_one_row_for_each_update(engine, beginning):
    engine.restore(beginning)
    reports = engine.advance(3)
    assert reports.tally.steps.tolist() == [16 * 8] * 3
    assert {len(x) for x in jax.tree.leaves(reports.tally)} == {3}
    assert {m.shape for m in reports.metrics.values()} == {(3,)}
    assert {g.shape for g in reports.guard} == {(3, len(jax.tree.leaves(engine.state().params)))}
    assert len(np.unique(reports.metrics["loss"])) == 3


def test_what_a_program_replaces_is_given_up_to_it(engine, beginning):
    engine.restore(beginning)
    slots = engine.replicas[0].slots
    before = {slot: jax.tree.leaves(slots[slot]) for slot in ("state", "env_state", "timesteps")}
    kept = jax.tree.leaves(slots["ids"])
    engine.advance(1)
    assert all(x.is_deleted() for leaves in before.values() for x in leaves)
    assert not any(x.is_deleted() for x in kept)
    (segment,) = engine.replicas[0].programs.updates
    assert isinstance(segment, Segment)
    assert set(before) <= set(segment.donated)


@pytest.mark.parametrize("count", [0, 1025])
def test_an_engine_refuses_counts_that_its_program_has_no_room_for(engine, count):
    with pytest.raises(ValueError, match=f"not {count}"):
        engine.advance(count)


def ran(nodes: tuple[Node, ...], slots: dict[str, Any]) -> dict[str, Any]:
    turns: Iterator[None] = drive(compile_program(nodes, wanted=frozenset({"episode_steps"})), slots)
    assert list(turns) == []
    return slots


def loops(kind: str) -> tuple[Node, ...]:
    """Three times over, double the memory and add 0 and 1 to it; keep what it comes to each time."""
    double = Op("act", lambda x: (x * 2,), ("memory",), ("memory",))
    add = Op("act", lambda x, t: (x + t,), ("memory", "t"), ("memory",), kind)
    keep = Op("act", lambda x: (x + 0,), ("memory",), ("episode_step",))
    return (Repeat("m", 3, (double, Repeat("t", 2, (add,)), keep), {"episode_step": "episode_steps"}),)


@pytest.mark.parametrize("kind", [TRACED, HOST])
def test_loops_count_the_same_in_python_and_compiled(kind):
    slots = ran(loops(kind), {"memory": np.int32(1)})
    assert np.asarray(slots["episode_steps"]).tolist() == [3, 7, 15]
    assert int(slots["memory"]) == 15


def test_a_host_op_splits_what_is_compiled_around_it():
    nodes = tuple(
        Op("act", lambda x: (x + 1,), ("memory",), ("memory",), kind) for kind in (TRACED, TRACED, HOST, TRACED)
    )
    compiled = compile_program(nodes)
    assert [type(n).__name__ for n in compiled] == ["Segment", "Op", "Segment"]
    assert len(compiled[0].nodes) == 2


def test_wiring_with_nothing_to_compute_is_not_compiled():
    wire = Op("act", lambda x: (x,), ("memory",), ("observed",), WIRING)
    assert compile_program((wire,)) == (wire,)


def test_every_donated_buffer_comes_back_as_itself_and_not_as_another_of_its_shape():
    bound, env, plan = prepare_plan(PPO(widths=(8,), unroll=4), "CartPole-v1", FUSED, envs=4)
    engine = SerialEngine(plan, bound, env, 0, 10)
    engine.start()
    slots = engine.replicas[0].slots
    (update,) = engine.replicas[0].programs.updates
    learn = next(n for n in update.body if isinstance(n, Segment) and "state" in n.donated)
    engine.advance(1)
    gone = {s: slots[s] for s in learn.donated}
    seen = {s: slots.get(s) for s in learn.reads}
    text = learn.function.lower(gone, seen).as_text()
    aliases = [int(k) for k in re.findall(r"tf.aliasing_output = (\d+)", text)]
    assert aliases == list(range(len(jax.tree.leaves(gone))))
    engine.close()
