"""A checkpoint of one colouring goes on under another to the same params: what is learned does not depend on cuts."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from matrix import ANY, colouring, engine_for

from tessera.engines.replica.recolouring import recoloured
from tessera.engines.replica.snapshots import fitted
from tessera.engines.serial import SerialEngine
from tessera.runs.checkpoint import flatten, unflatten

ONE, APART, SHARDS = "fused:devices=1", "all apart", "central:workers=2,shards=2"


def go_on(before: SerialEngine, after: SerialEngine) -> SerialEngine:
    """Give the newest snapshot of an engine to another one."""
    saved, like = flatten(jax.device_get(before.snapshot())), after.template()
    after.restore(unflatten(like, fitted(saved, like, after.plan, pytest.fail), "the checkpoint"))
    return after


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("name", "lag", "texts"),
    [
        pytest.param("ppo", 2, (ONE, "single_learner_coarse:actors=2", ONE), marks=pytest.mark.slow),
        ("dqn", 1, (APART, ONE, SHARDS)),
        pytest.param("ppo", 0, (ONE, SHARDS, "crossed", APART, ONE), marks=pytest.mark.slow),
        pytest.param("ppo_lstm", 1, (SHARDS, "unnamed", "multi_learner:learners=3", APART), marks=pytest.mark.slow),
        pytest.param("dqn", 0, (ONE, "distributed_replay:stores=2", "mirrored", ONE), marks=pytest.mark.slow),
    ],
)
def test_a_run_that_changes_its_colouring_learns_the_same(name: str, lag: int, texts: tuple[str, ...]) -> None:
    whole, changed = (engine_for(ANY[name], colouring(texts[0]), lag=lag) for _ in range(2))
    for engine in (whole, changed):
        engine.start()
    for text in texts[1:]:
        for engine in (whole, changed):
            engine.advance(1)
        changed = go_on(changed, engine_for(ANY[name], colouring(text), lag=lag))
    for engine in (whole, changed):
        engine.advance(2)
    states = [jax.device_get(engine.state()) for engine in (whole, changed)]
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9), *states)


def test_names_of_slots_change_with_the_colouring_and_values_do_not() -> None:
    arrays = {"state/params/w": 1, "state/optimizer/m": 2, "state/clock/applies": 3, "acting_queue/0/params/w": 4}
    cut = {"state": (), "view": (), "in_flight_acting": ()}
    expected = {
        "state/params/w": 1, "state/optimizer/m": 2, "state/clock/applies": 3, "in_flight_acting/0/params/w": 4,
        "view/params/w": 1, "view/clock/applies": 3,
    }  # fmt: skip
    assert recoloured(arrays, cut) == expected
    assert recoloured(expected, {"state": (), "acting_queue": ()}) == arrays
    assert recoloured(expected, cut) == expected
