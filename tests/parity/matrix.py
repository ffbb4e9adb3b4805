"""The parity matrix: what is trained, under which policies, and what each must give (law 2)."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest

from tessera import A2C, DQN, ES, IMPALA, PPO, Fragment, Policy, policies
from tessera.engines import serial
from tessera.engines.replica import replica
from tessera.engines.replica.reports import Reports
from tessera.engines.serial import SerialEngine
from tessera.graph.plan import Plan
from tessera.planning.prepare import prepare_plan
from tessera.program import compile as compile_module
from tessera.program import initial
from tessera.program.nodes import Every, Node, Op, Repeat, Segment, effects
from tessera.program.training_program import Training

ENV = "gymnax:CartPole-v1"
UPDATES = 3
MOVED = 1e-3
"""By how much params must have moved at the least: parity of params that stand still proves nothing."""

ALGORITHMS: dict[str, Any] = {
    "ppo": PPO(
        unroll=8,
        epochs=2,
        minibatches=2,
        widths=(8,),
        learning_rate=0.01,
        normalise_observations=True,
        normalise_rewards=True,
    ),
    "a2c": A2C(unroll=8, widths=(8,), learning_rate=0.01),
    "dqn": DQN(
        unroll=8,
        draws=2,
        batch=48,
        capacity=480,
        warmup=2,
        widths=(8,),
        learning_rate=0.01,
        target_period=4,
        prioritised=True,
        n_step=3,
        double=True,
        dueling=True,
    ),
}

RECURRENT: dict[str, Any] = {
    "ppo_lstm": dataclasses.replace(ALGORITHMS["ppo"], core="lstm", core_width=4),
    "impala_gru": IMPALA(unroll=8, widths=(8,), learning_rate=0.01, core="gru", core_width=4, burn_in=2),
}
"""Networks that remember, so that a row is an unroll of one environment."""

EVOLVED: dict[str, Any] = {"es": ES(unroll=24, members=24, widths=(8,))}
"""Params are perturbed for each environment, in two rounds, and what is sent is a seed and a score."""

ANY = {**ALGORITHMS, **RECURRENT, **EVOLVED}

NOBODY_NAMED: dict[str, Policy] = {
    "unnamed": Policy("unnamed", (Fragment("env act", 2), Fragment("store grad", 2), Fragment("apply"))),
    "all apart": Policy("all apart", tuple(Fragment(o) for o in ("env", "act", "store", "grad", "apply"))),
    "crossed": Policy("crossed", (Fragment("act apply", 2), Fragment("env grad", 3), Fragment("store"))),
}

SYNCHRONOUS: tuple[str, ...] = (
    *(f"single_learner_coarse:actors={n}" for n in (1, 2, 3)),
    *(f"single_learner_fine:actors={n}" for n in (1, 2, 3)),
    *(f"single_learner_fine:actors={n},wait=0" for n in (1, 2, 3)),
    *(f"multi_learner:learners={n}" for n in (1, 2, 3)),
    *(f"multi_learner_coarse:actors={n},learners={n}" for n in (1, 2, 3)),
    *(f"environments:workers={n}" for n in (1, 2, 3)),
    "environments:workers=3,agents=2",
    *(f"central:workers={n},shards={s}" for s in (1, 2) for n in (1, 2, 3)),
    *(f"distributed_replay:actors={n},stores={r}" for r in (1, 2) for n in (1, 2, 3)),
    *(f"gorila:mode=sync,actors={n},stores=2,learners=2,shards=3" for n in (1, 2, 3)),
    *(f"split_inference:workers={n},inference=2,learners=2" for n in (1, 2, 3)),
    *(f"split_inference:workers={n},inference=2,learners=2,wait=0" for n in (1, 2, 3)),
    *(f"mirrored:workers={n}" for n in (1, 2, 3)),
    *NOBODY_NAMED,
)

IN_LOCK_STEP: tuple[str, ...] = (
    *(f"single_learner_coarse:actors={n},mode=async,lag=0" for n in (1, 2, 3)),
    *(f"single_learner_coarse:actors={n},mode=async,lag=0,take=6" for n in (1, 2, 3)),
    *(f"single_learner_coarse:actors={n},mode=first,first={n}" for n in (1, 2, 3)),
    *(f"central:workers=1,shards={s},mode=async,lag=0" for s in (1, 2)),
    *(f"distributed_replay:actors={n},stores=2,mode=async,lag=0,ahead=0" for n in (1, 2, 3)),
    *(f"gorila:actors={n},stores=2,learners=1,shards=2,lag=0" for n in (1, 2, 3)),
    "gorila:bundled=true,actors=1,shards=2,lag=0",
    *(f"decentralised:workers={n},lag=0" for n in (1, 2, 3)),
)
"""Asynchronous policies with a bound on lag of 0 and one replica of `grad`; without a server, an all-reduce."""


def colouring(text: str) -> Policy:
    """The policy that a row of the matrix is about."""
    return NOBODY_NAMED[text] if text in NOBODY_NAMED else policies.parse(text)


def with_two_replicas(texts: tuple[str, ...], *always: str) -> list[Any]:
    """Rows for `make test`: policies named in `always`, and of the others those with two replicas. The rest is slow."""
    few = re.compile(r"(workers|actors|learners)=[13]")
    quick = {text for text in texts if not few.search(text) or policies.split(text)[0] in always}
    return [pytest.param(text, marks=() if text in quick else pytest.mark.slow) for text in texts]


def engine_for(algorithm: Any, policy: Policy, precision: str = "f64", envs: int = 12, **options: Any) -> SerialEngine:
    """A serial engine; 12 environments in 6 groups share out evenly over 1, 2 and 3 replicas, so little is compiled."""
    groups = options.pop("groups", envs // 2)
    bound, made, plan = prepare_plan(
        algorithm, options.pop("env", ENV), policy, envs=envs, groups=groups, precision=precision, **options
    )
    with shared_compiles():
        return SerialEngine(plan, bound, made, seed=3, horizon=10)


SHARED: dict[Any, Any] = {}


@contextlib.contextmanager
def shared_compiles() -> Iterator[None]:
    """Compile what replicas run only where no earlier engine's replica ran the same: most of the matrix's time."""
    training: list[Training] = []
    make_programs, segment, maker = replica.make_programs, compile_module._segment, initial._maker

    def programs(mine: Training, plan: Plan, fragment: int) -> Any:
        training[:] = [dataclasses.replace(mine, env=mine.env.name)]  # type: ignore[arg-type]
        return make_programs(mine, plan, fragment)

    def shared_segment(nodes: Any, others: Any, hosts: Any, mesh: Any, loop: Any) -> Segment:
        written = effects(nodes)[1]
        around = (frozenset(others & written), frozenset(hosts & written), mesh, described((loop,)) if loop else ())
        key = (*training, described(nodes), *around)
        if key not in SHARED:
            SHARED[key] = segment(nodes, others, hosts, mesh, loop)
        return dataclasses.replace(SHARED[key])

    def shared_maker(mine: Training, plan: Plan, index: int, number: int) -> Any:
        make, learned, ids = maker(mine, plan, index, number)
        placed = plan.fragments[index]
        whose = (placed.replicas, number) if placed.sharded else ()
        key = (dataclasses.replace(mine, env=mine.env.name), plan.envs_per_group, placed.operators, whose)  # type: ignore[arg-type]
        return SHARED.setdefault(key, make), learned, ids

    with (
        mock.patch.object(serial, "make_programs", programs),
        mock.patch.object(compile_module, "_segment", shared_segment),
        mock.patch.object(initial, "_maker", shared_maker),
    ):
        yield


def described(nodes: tuple[Node, ...]) -> tuple[Any, ...]:
    """A program as plain data; for one training an Op's function is known by what it reads and writes."""
    out: list[Any] = []
    for node in nodes:
        match node:
            case Op():
                out.append(dataclasses.replace(node, function=None))  # type: ignore[arg-type]
            case Repeat():
                out.append((node.index, node.count, tuple(node.stacks.items()), described(node.body)))
            case Every():
                out.append((node.count, described(node.body)))
            case _:
                out.append(node)
    return tuple(out)


def run(algorithm: Any, policy: Policy, updates: int = UPDATES, **options: Any) -> tuple[Any, Any, Reports]:
    """The learner's state before the first update and after the last, as NumPy arrays, and the reports."""
    engine = engine_for(algorithm, policy, **options)
    try:
        before = jax.tree.map(np.array, engine.state())
        engine.start()
        reports = engine.advance(updates)
        return before, jax.tree.map(np.array, engine.state()), reports
    finally:
        engine.close()


@functools.cache
def on_one_device(name: str, **options: Any) -> Any:
    """What every colouring must give; computed once for each algorithm."""
    before, after, _ = run(ANY[name], policies.get("fused", devices=1), **options)
    assert all(x.dtype == np.float64 for x in jax.tree.leaves(after.params))
    for part in ("params", "target", "statistics"):
        was, is_now = getattr(before, part), getattr(after, part)
        assert furthest(was, is_now) > MOVED or not jax.tree.leaves(is_now)
    return after


def furthest(a: Any, b: Any) -> float:
    """The largest difference between two trees."""
    differences = jax.tree.map(lambda x, y: np.abs(x - y).max(initial=0), a, b)
    return float(max(jax.tree.leaves(differences), default=0))


def assert_parity(name: str, policy: Policy, **options: Any) -> None:
    """Compare params, optimiser, target network, normalisers and clock with those of one device."""
    expected = on_one_device(name, **options)
    _, state, _ = run(ANY[name], policy, **options)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9), state, expected)


REPLAY_POLICIES = (
    "single_learner_coarse:actors=2",
    "distributed_replay:actors=2,stores=2",
    "central:workers=2,shards=2",
    "multi_learner:learners=2",
)
"""Synchronous policies that cut a replay algorithm in different places, also the params."""


def assert_same_state(algorithm: Any, policy: str, expected: Any, env: str = ENV) -> None:
    """Train under a policy: the whole state is the expected one, to 1e-9."""
    _, state, _ = run(algorithm, policies.parse(policy), env=env)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9), state, expected)
