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
from tessera.planning.prepare import prepare_plan
from tessera.program.sharding import cut

pytestmark = pytest.mark.usefixtures("x64")

WIDE = PPO(unroll=8, epochs=1, minibatches=2, widths=(128, 256), learning_rate=0.01)
IMAGES = PPO(unroll=2, epochs=1, minibatches=2, widths=(128,), torso="small", learning_rate=0.01)
TASKS: dict[str, tuple[Any, str]] = {
    "mlp": (WIDE, "gymnax:CartPole-v1"),
    "cnn": (IMAGES, "gymnax:Breakout-MinAtar"),
}
MESHES = ((8, 1), (4, 2), (2, 4), (1, 8))
QUICK = {("mlp", 1, 8), ("cnn", 4, 2)}
"""Those of all that every test run has time for."""


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
def alone() -> dict[str, list[Any]]:
    return {}


@pytest.mark.parametrize(
    ("task", "data", "model"),
    [
        pytest.param(task, *mesh, marks=() if (task, *mesh) in QUICK else pytest.mark.slow)
        for task in TASKS
        for mesh in MESHES
    ],
)
def test_any_mesh_gives_the_params_of_one_device(task, data, model, alone):
    if task not in alone:
        before, params, held = run(task, policies.get("fused", devices=1))
        assert furthest(before, params) > MOVED
        alone[task] = [params, held]
    expected, whole = alone[task]
    _, params, held = run(task, policies.get("fused", devices=data, model=model))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9), params, expected)
    assert held <= whole / model * 1.15  # biases and heads that are not wide lie on every device


@pytest.mark.parametrize(
    "policy", ["central:workers=2,model=2", pytest.param("single_learner_coarse:actors=2", marks=pytest.mark.slow)]
)
def test_learners_apart_from_others_cut_their_layers_too(policy, alone):
    if "mlp" not in alone:
        _, *alone["mlp"] = run("mlp", policies.get("fused", devices=1))
    chosen = policies.parse(policy)
    _, params, _ = run("mlp", chosen if "central" in policy else chosen.on_mesh(2, 2))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9), params, alone["mlp"][0])


def test_a_checkpoint_of_cut_layers_is_whole(tmp_path):
    options: dict[str, Any] = {"envs": 16, "groups": 8, "seed": 2, "quiet": True, "eval_episodes": 4}
    small = PPO(unroll=8, epochs=1, minibatches=1, widths=(64,), anneal=False)
    straight = tessera.train(small, "gymnax:CartPole-v1", "fused:devices=1", steps=8 * 16 * 4, **options)
    folder = tmp_path / "run"
    tessera.train(small, "gymnax:CartPole-v1", mesh="data=2,model=4", steps=8 * 16 * 2, run_dir=folder, **options)
    resumed = tessera.train(
        small, "gymnax:CartPole-v1", mesh="data=4,model=2", steps=8 * 16 * 4, run_dir=folder, resume=True, **options
    )
    assert resumed.summary["updates"] == 4
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), resumed.state.params, straight.state.params
    )


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


def test_a_host_environment_trains_on_a_mesh_and_what_to_expect_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its params, which lag by one update, pass through Python on their way to `act`."""
    monkeypatch.setattr("tessera.runs.display.cores", lambda: 2)
    options = {"envs": 8, "precision": "f64", "eval_episodes": 1}
    wide = tessera.A2C(unroll=2, widths=(64,))
    result = tessera.train(wide, "CartPole-v1", "fused", mesh="data=2,model=2", steps=8 * 2 * 3, **options)
    assert result.summary["updates"] == 3
    assert "4 CPU devices share 2 cores" in capsys.readouterr().out
