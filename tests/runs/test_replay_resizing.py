"""Replays in checkpoints: left out, refilled, fitted to another size; and runs that are made longer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tessera
from tessera import DQN, TesseraError, train
from tessera.runs.checkpoint import Checkpoints
from tessera.stores import Experience, Replay
from tessera.stores.replay import rebuilt

SMALL = {"unroll": 4, "draws": 1, "batch": 16, "warmup": 8, "widths": (8,), "prioritised": True, "n_step": 2}
CARTPOLE = "gymnax:CartPole-v1"


@dataclass(frozen=True)
class TupleRowsDQN(DQN):
    """DQN whose replay rows are a tuple."""

    name: ClassVar[str] = "tuple_rows_dqn"

    def digest(self, view: Any, memory: Any, trajectory: Any) -> Any:
        experience, memory = super().digest(view, memory, trajectory)
        return experience._replace(rows=(experience.rows, {"steps": [experience.rows.reward]})), memory

    def prepare(self, view: Any, sample: Any) -> Any:
        return super().prepare(view, sample._replace(rows=sample.rows[0]))


def go(
    folder: Path,
    steps: int,
    capacity: int = 512,
    policy: str = "fused:devices=1",
    algorithm: type[DQN] = DQN,
    **options: Any,
) -> Any:
    return train(
        algorithm(capacity=capacity, **SMALL), CARTPOLE, policy, steps=steps, envs=8, groups=4, seed=1, run_dir=folder,
        eval_episodes=2, quiet=True, **options,
    )  # fmt: skip


def arrays_of(folder: Path) -> dict[str, np.ndarray]:
    checkpoints = Checkpoints(folder / "checkpoints", 3)
    latest = checkpoints.latest()
    assert latest is not None
    return checkpoints.load(latest)[0]


@pytest.mark.parametrize("prioritised", [True, False])
@pytest.mark.parametrize(("before", "after"), [(16, 8), (16, 64), (16, 300)])
@pytest.mark.parametrize("puts", [1, 3, 7])
def test_the_newest_rows_are_kept_in_order_with_their_priorities(prioritised, before, after, puts):
    row = {"id": jax.ShapeDtypeStruct((), jnp.int32)}
    old, new = (Replay(size, 4, prioritised=prioritised) for size in (before, after))
    buffer = old.init(row, 4)
    for k in range(puts):
        ids = jnp.arange(4 * k, 4 * k + 4, dtype=jnp.int32).reshape(4, 1)
        buffer = old.put(buffer, Experience({"id": ids}, priority=1.0 + ids, version=ids))
    buffer, like = jax.tree.map(np.asarray, (buffer, new.init(row, 4)))
    entries = buffer.tree[0] if prioritised else None
    counts = (int(buffer.head), int(buffer.filled), buffer.largest)
    got = rebuilt(new, like, (buffer.rows, buffer.version), counts, entries)
    held = list(range(4 * puts))[-min(before, after) :]
    np.testing.assert_array_equal(got.rows["id"][: len(held)], held)
    np.testing.assert_array_equal(got.version[: len(held)], held)
    assert (int(got.filled), int(got.head)) == (len(held), len(held) % after)
    if prioritised:
        np.testing.assert_allclose(got.tree[0][: len(held)], (1.0 + np.array(held)) ** 0.6, rtol=1e-6)
        for level in got.tree[1:]:
            assert float(level.sum()) == pytest.approx(float(got.tree[0].sum()), rel=1e-5)
    put = new.put(jax.tree.map(jnp.asarray, got), Experience({"id": jnp.full((4, 1), 99)}, priority=jnp.ones((4, 1))))
    assert int(put.filled) == min(after, len(held) + 4)


@pytest.mark.parametrize("algorithm", [DQN, TupleRowsDQN])
def test_a_resumed_run_may_have_a_replay_of_another_size(algorithm, tmp_path):
    go(tmp_path / "run", 2_000, algorithm=algorithm)
    full = arrays_of(tmp_path / "run")
    smaller = go(tmp_path / "run", 2_100, capacity=128, algorithm=algorithm, resume=True)
    assert smaller.summary["env_steps"] >= 2_100
    shrunk = arrays_of(tmp_path / "run")
    assert full["buffer/version"].shape == (4, 128)
    assert shrunk["buffer/version"].shape == (4, 32)
    newest = np.sort(full["buffer/version"], axis=1)[:, -8:]
    assert np.isin(newest, shrunk["buffer/version"]).all()  # the newest have stayed


@pytest.mark.parametrize("engine", ["serial", pytest.param("local", marks=pytest.mark.slow)])
def test_a_replay_that_is_left_out_is_filled_again(engine, tmp_path):
    placed = {"policy": "distributed_replay:stores=2", "engine": engine}
    go(tmp_path / "run", 1_000, **placed, checkpoint_replay=False)
    assert not [name for name in arrays_of(tmp_path / "run") if "buffer" in name or "priorities" in name]
    result = go(tmp_path / "run", 1_500, **placed, checkpoint_replay=True, resume=True)
    assert result.summary["env_steps"] >= 1_500
    again = arrays_of(tmp_path / "run")
    warm = 8 * 4 * 2  # unrolls, steps of each and environments of a group
    made = result.metrics[-1]["update"] - result.metrics[0]["update"] + 1
    assert (again["buffer/filled"] == min(128, warm + made * 8)).all()
    assert np.isfinite(
        np.concatenate([x.ravel() for name, x in again.items() if name.startswith("state/params")])
    ).all()


def test_a_run_that_is_made_longer_goes_on_learning(tmp_path):
    first = go(tmp_path / "run", 1_000)
    longer = go(tmp_path / "run", 3_000, resume=True)
    moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), first.state.params, longer.state.params)
    assert max(jax.tree.leaves(moved)) > 1e-3  # rates that fell to zero rise again: there is more to come
    clock = longer.state.clock
    assert int(clock.applies) == int(clock.horizon)


def test_other_fields_may_not_change(tmp_path):
    go(tmp_path / "run", 500)
    with pytest.raises(TesseraError, match="was run with envs = 8, not 16"):
        train(DQN(capacity=512, **SMALL), CARTPOLE, "fused:devices=1", steps=600, envs=16, groups=4, seed=1,
              run_dir=tmp_path / "run", resume=True, quiet=True)  # fmt: skip


@pytest.mark.slow
def test_an_asynchronous_run_with_priorities_under_way_is_resumed(tmp_path):
    algorithm = tessera.DQN(unroll=8, draws=2, batch=32, capacity=2_000, warmup=8, widths=(8,), prioritised=True)
    options = {"seed": 1, "envs": 16, "run_dir": tmp_path, "eval_episodes": 2, "quiet": True}
    policy = "distributed_replay:mode=async,stores=2,publish=2"
    for updates in (20, 40):
        result = tessera.train(
            algorithm, "gymnax:CartPole-v1", policy, steps=updates * 8 * 16, resume=updates > 20, **options
        )
        assert result.summary["updates"] == updates - algorithm.warmup
