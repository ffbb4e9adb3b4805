"""A run that goes on with fewer replicas learns what it would have learned with all of them."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from matrix import ALGORITHMS, ENV, shared_compiles

from tessera.engines.replica.snapshots import without_spare_peers
from tessera.engines.serial import SerialEngine
from tessera.graph.plan import Plan
from tessera.graph.smaller_plans import with_fewer
from tessera.planning.prepare import prepare_plan
from tessera.runs.checkpoint import flatten, unflatten

CUTS = [
    ("single_learner_coarse:actors=3", "ppo", 0, 0),
    pytest.param("single_learner_coarse:actors=2", "a2c", 0, 2, marks=pytest.mark.slow),
    pytest.param("multi_learner:learners=3", "ppo", 0, 0, marks=pytest.mark.slow),
    ("multi_learner:learners=2", "a2c", 0, 0),
    ("central:workers=3,shards=3", "ppo", 0, 0),
    pytest.param("central:workers=2,shards=2", "ppo", 1, 1, marks=pytest.mark.slow),
    ("distributed_replay:stores=2", "dqn", 1, 0),
    ("gorila:learners=2,mode=sync", "dqn", 2, 0),
    ("mirrored", "dqn", 0, 0),
]


def engine_of(plan: Plan, name: str) -> SerialEngine:
    bound, made, _ = prepare_plan(ALGORITHMS[name], ENV, "fused", envs=24, groups=8, precision="f64")
    with shared_compiles():
        return SerialEngine(plan, bound, made, seed=3, horizon=10)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("policy", "name", "index", "lag"), CUTS)
def test_a_checkpoint_goes_on_with_fewer_replicas_to_the_same_params(policy, name, index, lag):
    options = {"envs": 24, "groups": 8, "precision": "f64", "lag": lag}
    _, _, plan = prepare_plan(ALGORITHMS[name], ENV, policy, **options)
    smaller = with_fewer(plan, index)
    assert smaller is not None
    assert smaller.fragments[index].replicas == plan.fragments[index].replicas - 1
    whole, left = engine_of(plan, name), engine_of(smaller, name)
    whole.start()
    whole.advance(2)
    saved = flatten(jax.device_get(whole.snapshot()))
    left.restore(unflatten(left.template(), saved, "the checkpoint"))
    states = []
    for engine in (whole, left):
        engine.advance(2)
        states.append(jax.device_get(engine.state()))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9), *states)


@pytest.mark.parametrize("workers", [3, 2])
def test_peers_that_are_too_many_are_left_out_of_a_checkpoint(workers):
    _, _, plan = prepare_plan(ALGORITHMS["a2c"], ENV, f"averaging:workers={workers}", envs=24, groups=8)
    smaller = with_fewer(plan, 0)
    assert smaller is not None
    whole, left = (engine_of(p, "a2c") for p in (plan, smaller))
    whole.start()
    whole.advance(2)
    saved, like = flatten(jax.device_get(whole.snapshot())), left.template()
    left.restore(unflatten(like, without_spare_peers(saved, like), "the checkpoint"))
    left.advance(2)
    assert int(left.state().clock.applies) == 4
