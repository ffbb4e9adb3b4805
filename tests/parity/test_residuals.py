"""What a codec has not sent yet is a part of the state: no resume loses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from matrix import ENV, engine_for, shared_compiles
from test_disciplines import Listened, recorded, total

from tessera import A2C, Cut, Fragment, Policy, policies
from tessera.engines.local import LocalEngine
from tessera.engines.replica.snapshots import fitted
from tessera.engines.serial import SerialEngine
from tessera.graph.groups import deal
from tessera.planning.prepare import prepare_plan
from tessera.runs.checkpoint import flatten, unflatten

THRESHOLD = 0.002
CODED = Cut(codec="threshold", threshold=THRESHOLD)
NOTES: list[str] = []
SMALL = A2C(unroll=8, widths=(8,), learning_rate=0.01)


def server(workers: int, devices: int = 1) -> Policy:
    """Workers that send coded gradients to a server, all in lock step."""
    fragments = (Fragment("env act store grad", workers, devices=devices), Fragment("apply"))
    return Policy("coded", fragments, {"gradients": CODED})


POLICIES: dict[str, Callable[[int], Policy]] = {
    "server": server,
    "peers": lambda workers: policies.parse(f"decentralised:workers={workers},lag=0,threshold={THRESHOLD}"),
}


def engine_of(kind: Any, policy: Policy, algorithm: Any = SMALL, **options: Any) -> Any:
    if kind is SerialEngine:
        return engine_for(algorithm, policy, precision="f32", **options)
    bound, made, plan = prepare_plan(algorithm, ENV, policy, envs=12, groups=6)
    return LocalEngine(plan, bound, made, seed=3, horizon=10, note=lambda _: None)


def reread(engine: Any, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """A checkpoint's arrays as a snapshot for this engine."""
    like = engine.template()
    return unflatten(like, fitted(arrays, like, engine.plan, NOTES.append), "the checkpoint")


def saved(engine: Any) -> dict[str, np.ndarray]:
    return flatten(jax.device_get(engine.snapshot()))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, SerialEngine) for name in POLICIES),
        *(pytest.param(name, LocalEngine, marks=pytest.mark.slow) for name in POLICIES),
    ],
)
def test_a_run_with_a_codec_goes_on_from_a_checkpoint_bit_for_bit(name, kind):
    whole, resumed = (engine_of(kind, POLICIES[name](2)) for _ in range(2))
    try:
        whole.start()
        whole.advance(2)
        resumed.restore(reread(resumed, saved(whole)))
        assert any(array.any() for path, array in saved(whole).items() if path.startswith("residual/"))
        for engine in (whole, resumed):
            engine.advance(3)
        expected, found = saved(whole), saved(resumed)
        assert expected.keys() == found.keys()
        assert not [path for path in expected if expected[path].tobytes() != found[path].tobytes()]
    finally:
        whole.close()
        resumed.close()


@pytest.mark.parametrize("name", POLICIES)
def test_what_was_sent_and_what_is_kept_is_the_sum_of_all_gradients_across_a_resume(name):
    Listened.heard.clear()
    listened = Listened(unroll=8, widths=(8,), learning_rate=0.01)
    with recorded("dict") as sent:
        first, then = (engine_of(SerialEngine, POLICIES[name](2), listened) for _ in range(2))
        first.start()
        first.advance(2)
        then.restore(reread(then, saved(first)))
        then.advance(2)
        jax.effects_barrier()
    kept = [jax.tree.map(np.array, r.slots["residual"]) for r in then.replicas if "residual" in r.slots]
    coded = [value for value, _ in sent if "kernel" in str(jax.tree.structure(value))]
    assert len(coded) == len(Listened.heard) == 8
    assert max(abs(x).max() for x in jax.tree.leaves(kept)) > THRESHOLD / 2
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), total([*coded, *kept]), total(Listened.heard)
    )


def owed(arrays: dict[str, np.ndarray], solo: bool = False) -> dict[str, np.ndarray]:
    """By what the params will move for residuals, over learning rate: by their mean over groups, or each alone."""
    kept = {path: x.astype(np.float64) for path, x in arrays.items() if path.startswith("residual/")}
    weights = [1.0 if solo else len(g) / 6 for g in deal(6, len(next(iter(kept.values()))))]
    return {path: np.tensordot(weights, x, 1) for path, x in kept.items()}


@pytest.mark.parametrize(("name", "fewer"), [("server", 1), ("server", 3), ("peers", 2), ("asynchronous server", 2)])
def test_with_fewer_replicas_the_params_are_owed_what_they_were_owed_before(name, fewer):
    solo = name == "asynchronous server"
    loose = {"gradients": Cut("async", codec="threshold", threshold=THRESHOLD), "params": Cut("async", lag=1)}

    def policy(workers: int) -> Policy:
        return Policy("coded", server(workers).fragments, loose) if solo else POLICIES[name](workers)

    whole, left = (engine_of(SerialEngine, policy(workers)) for workers in (4, fewer))
    whole.start()
    whole.advance(3)
    arrays = saved(whole)
    left.restore(reread(left, arrays))
    before, after = owed(arrays, solo), owed(saved(left), solo)
    assert max(abs(x).max() for x in before.values()) > THRESHOLD / 4
    for path in before:
        np.testing.assert_allclose(after[path], before[path], atol=1e-8)
    left.advance(1)


def test_a_replica_that_is_left_alone_compresses_nothing_and_the_run_says_what_is_dropped():
    whole, left = (engine_of(SerialEngine, POLICIES["peers"](workers)) for workers in (2, 1))
    whole.start()
    whole.advance(2)
    NOTES.clear()
    left.restore(reread(left, saved(whole)))
    assert NOTES == ["gradients that a codec had kept for later are dropped: nothing is compressed from here on"]
    left.advance(1)


def test_a_checkpoint_from_before_residuals_were_saved_begins_with_none():
    engine = engine_of(SerialEngine, server(2))
    engine.start()
    engine.advance(2)
    arrays = {path: x for path, x in saved(engine).items() if not path.startswith("residual/")}
    engine.restore(reread(engine, arrays))
    assert not any(x.any() for path, x in saved(engine).items() if path.startswith("residual/"))
    engine.advance(1)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_devices_of_one_replica_keep_one_residual_of_their_mean():
    states, kept = [], []
    for devices in (1, 2):
        bound, made, plan = prepare_plan(SMALL, ENV, server(2, devices), envs=16, groups=8, precision="f64")
        with shared_compiles():
            engine = SerialEngine(plan, bound, made, seed=3, horizon=10)
        engine.start()
        engine.advance(3)
        states.append(jax.device_get(engine.state()))
        kept.append({path: x for path, x in saved(engine).items() if path.startswith("residual/")})
    for pair in (states, kept):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9), *pair)
