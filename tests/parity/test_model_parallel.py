"""Wide layers cut over devices: the params of one device, in float64 to 1e-9, and less memory on each."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from matrix import MOVED, UPDATES, furthest

import tessera
from tessera import PPO, Policy, TesseraError, policies
from tessera.engines.serial import SerialEngine
from tessera.program.sharding import cut
from tessera.train import prepare_plan

pytestmark = pytest.mark.usefixtures("x64")

WIDE = PPO(unroll=8, epochs=1, minibatches=2, widths=(128, 256), learning_rate=0.01)
IMAGES = PPO(unroll=2, epochs=1, minibatches=2, widths=(128,), torso="small", learning_rate=0.01)
TASKS: dict[str, tuple[Any, str]] = {
    "mlp": (WIDE, "gymnax:CartPole-v1"),
    "cnn": (IMAGES, "gymnax:Breakout-MinAtar"),
}
MESHES = ((8, 1), (4, 2), (2, 4), (1, 8))
QUICK = ((4, 2),)
"""For images, beside which the others are slow."""


def run(task: str, policy: Policy) -> tuple[Any, Any, int]:
    """Params before and after some updates, and bytes of the learner's state on the first device."""
    algorithm, env = TASKS[task]
    bound, made, plan = prepare_plan(algorithm, env, policy, envs=16, groups=8, precision="f64")
    engine = SerialEngine(plan, bound, made, seed=3, horizon=10)
    try:
        before = jax.tree.map(np.array, engine.state().params)
        engine.start()
        engine.advance(UPDATES)
        state = next(r.slots["state"] for r in engine.replicas if "state" in r.slots)
        held = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(state))
        return before, jax.tree.map(np.array, engine.state().params), held
    finally:
        engine.close()


@pytest.fixture(scope="module")
def alone() -> dict[str, tuple[Any, int]]:
    return {}


@pytest.mark.parametrize(
    ("task", "data", "model"),
    [
        pytest.param(task, *mesh, marks=pytest.mark.slow if task == "cnn" and mesh not in QUICK else ())
        for task in TASKS
        for mesh in MESHES
    ],
)
def test_any_mesh_gives_the_params_of_one_device(task, data, model, alone):
    if task not in alone:
        before, params, held = run(task, policies.get("fused", devices=1))
        assert furthest(before, params) > MOVED
        alone[task] = params, held
    expected, whole = alone[task]
    _, params, held = run(task, policies.get("fused", devices=data, model=model))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9), params, expected)
    assert held <= whole / model * 1.15  # biases and heads that are not wide lie on every device


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("kernel", (4, 256), PartitionSpec(None, "model")),
        ("kernel", (256, 2), PartitionSpec("model")),
        ("kernel", (4, 32), PartitionSpec()),
        ("kernel", (3, 3, 16, 64), PartitionSpec(None, None, None, "model")),
        ("kernel", (4, 66), PartitionSpec()),  # 4 do not divide 66
        ("bias", (256,), PartitionSpec("model")),
        ("log_std", (256,), PartitionSpec()),
        ("count", (), PartitionSpec()),
    ],
)
def test_layers_are_cut_by_name_and_shape(name, shape, expected):
    assert cut(name, shape, 4) == expected


def test_more_devices_than_there_are_is_refused_with_both_numbers():
    with pytest.raises(TesseraError, match=r"asks for 32 devices, available: 8 \(cpu\); XLA_FLAGS"):
        tessera.train(WIDE, "gymnax:CartPole-v1", "fused:devices=4,model=8")
    with pytest.raises(TesseraError, match=r"cuts layers over 0 devices"):
        policies.get("fused", model=0)
