"""Rules for large batches, and gradients that are pushed several at a time."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tessera
from tessera import A2C, PPO, TesseraError, envs, policies
from tessera.algorithms.contract import Clock, Step
from tessera.algorithms.parts.large_batch import rate_factor
from tessera.channels.gradient_accumulation import GradientAccumulator
from tessera.engines.serial import SerialEngine
from tessera.planning.prepare import planned_updates, prepare_plan
from tessera.program.exchange import SoloGradient

ENV = "gymnax:CartPole-v1"


@pytest.mark.parametrize(
    ("scaling", "warmup", "progress", "expected"),
    [
        ("none", 0.0, 0.5, 1.0),
        ("linear", 0.0, 0.0, 8.0),
        ("sqrt", 0.0, 0.0, 8**0.5),
        ("linear", 0.2, 0.0, 1.0),  # Goyal et al.: from the rate of the small batch ...
        ("linear", 0.2, 0.1, 4.5),
        ("linear", 0.2, 0.2, 8.0),  # ... to that of the large one
        ("linear", 0.2, 0.9, 8.0),
    ],
)
def test_the_rate_follows_the_batch(scaling, warmup, progress, expected):
    assert float(rate_factor(scaling, 8.0, warmup, progress)) == pytest.approx(expected)


def rate(algorithm: Any, count: int, applies: int = 0) -> float:
    bound, *_ = prepare_plan(algorithm, ENV, "fused:devices=1", envs=count)
    return float(bound.rate(Clock(jnp.int32(applies), jnp.int32(100))))


def test_the_rate_grows_with_environments_beyond_those_it_is_meant_for():
    plain = PPO(learning_rate=0.001, anneal=False)
    scaled = PPO(learning_rate=0.001, anneal=False, rate_scaling="linear")
    assert rate(plain, 512) == rate(scaled, 64) == pytest.approx(0.001)
    assert rate(scaled, 512) == pytest.approx(0.008)
    assert rate(PPO(learning_rate=0.001, anneal=False, rate_scaling="sqrt", rate_envs=128), 512) == pytest.approx(0.002)
    assert rate(scaled, 32) == pytest.approx(0.001)  # fewer than usual are no large batch
    annealed = PPO(learning_rate=0.001, anneal=True, rate_scaling="linear", rate_warmup=0.5)
    assert rate(annealed, 512, applies=25) == pytest.approx(0.001 * 4.5 * 0.75)


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("lamb", optax.lamb(0.01)),
        ("lars", optax.lars(0.01, weight_decay=0.0)),
    ],
)
def test_layerwise_steps_are_those_of_optax(name, theirs):
    algorithm = A2C(learning_rate=0.01, anneal=False, layerwise=name, max_gradient_norm=0.0, widths=(8,))
    bound = algorithm.bind(envs.make(ENV).spec)
    params = bound.init(jax.random.key(0))
    state = bound.start(params)._replace(clock=Clock(jnp.int32(0), jnp.int32(10)))
    expected, held = params, theirs.init(params)
    for k in range(3):
        loss_gradient = jax.tree.map(lambda p, k=k: jnp.cos(p + k), params)
        state = bound.apply(state, loss_gradient, Step(jnp.float32(1.0)))
        steps, held = theirs.update(loss_gradient, held, expected)
        expected = optax.apply_updates(expected, steps)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7), state.params, expected)


def test_what_cannot_be_is_refused():
    with pytest.raises(TesseraError, match=r"cuts them over 2 shards: use 1 shard"):
        tessera.train(PPO(layerwise="lamb"), ENV, "central:shards=2")
    with pytest.raises(TesseraError, match=r"unknown --layerwise 'lam': did you mean 'lamb'"):
        tessera.train(PPO(layerwise="lam"), ENV)
    with pytest.raises(TesseraError, match=r"--rate-warmup 2: must be between 0 and 1"):
        tessera.train(PPO(rate_warmup=2), ENV)
    with pytest.raises(TesseraError, match=r"every 4: only 'updates', async 'gradients'"):
        policies.parse("central:push=4")
    with pytest.raises(TesseraError, match=r"--mesh 4x2: write data=N,model=M"):
        tessera.train(PPO(), ENV, mesh="4x2")


def test_gradients_that_are_sent_as_one_are_their_mean():
    accumulator = GradientAccumulator(2)
    values = [
        {"w": np.asarray([2.0, 4.0]), "b": np.asarray([6.0])},
        {"w": np.asarray([0.0, 8.0]), "b": np.asarray([2.0])},
    ]
    for k, value in enumerate(values):
        assert not accumulator.full
        accumulator.add(SoloGradient(value, np.zeros(2), ()), version=7 + k)
    assert accumulator.full
    sent, version = accumulator.take()
    np.testing.assert_allclose(sent.values["w"], [1.0, 6.0])
    np.testing.assert_allclose(sent.values["b"], [4.0])
    np.testing.assert_allclose(sent.squares, [16.0, 37.0])  # in the order of leaves: b, w
    assert version == 7  # the oldest's
    assert not accumulator.full


def test_a_push_period_sends_fewer_gradients_and_plays_as_much():
    algorithm = A2C(unroll=4, widths=(8,))
    counts = {}
    for push in (1, 4):
        bound, made, plan = prepare_plan(algorithm, ENV, f"central:workers=1,mode=async,push={push}", envs=8, groups=2)
        counts[push] = planned_updates(bound, plan, 8 * 4 * 64)
        engine = SerialEngine(plan, bound, made, seed=1, horizon=counts[push])
        try:
            engine.start()
            reports = engine.advance(counts[push])
        finally:
            engine.close()
        assert reports.flows["gradients"].messages == counts[push]
        assert 8 * 4 * 64 <= reports.tally.steps.sum() < 8 * 4 * 64 * 1.2  # a worker may be ahead a little
    assert counts == {1: 64, 4: 16}


@pytest.mark.slow
def test_workers_whose_layers_are_cut_learn_around_a_server(tmp_path):
    """DistBelief: real processes, each with two devices of its own."""
    result = tessera.train(
        A2C(widths=(64,), unroll=8), ENV, "central:mode=async,model=2,push=2,pull=2,shards=2", envs=16, steps=4096,
        run_dir=tmp_path / "run", quiet=True,
    )  # fmt: skip
    assert result.summary["engine"] == "local"
    assert result.summary["updates"] == 32  # of two gradients of half of the environments each
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(result.state.params))
