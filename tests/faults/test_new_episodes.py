"""Where a run goes on, host environments start new episodes: other ones, and nothing joins them with the old."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Any

import jax
import numpy as np
import pytest
from broken_envs import notes_of
from test_faults import MATCH, notes  # noqa: F401

import tessera
from tessera.algorithms.contract import Algorithm
from tessera.engines.local import LocalEngine
from tessera.engines.serial import SerialEngine
from tessera.planning.prepare import prepare_plan
from tessera.program.keys import environment_seed

WITH_MEMORY: dict[str, Algorithm] = {
    "a window of steps": tessera.DQN(unroll=8, n_step=3, batch=16, capacity=512, warmup=2, widths=(8,)),
    "a recurrent carry": tessera.PPO(unroll=8, minibatches=1, epochs=1, widths=(8,), core="lstm", core_width=4),
    "a sequence": tessera.R2D2(batch=16, capacity=512, warmup=2, widths=(8,), core_width=4),
    "a pending step": tessera.QLearning(unroll=8, widths=(8,), kind="sarsa"),
}


def opened(algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch, policy: str) -> tuple[SerialEngine, list[Any]]:
    """An engine, and the seeds that its environments were given."""
    bound, made, plan = prepare_plan(algorithm, "CartPole-v1", policy, envs=4, groups=2, lag=0, engine="serial")
    seeds: list[Any] = []
    from tessera.envs import gymnasium

    seed_for = gymnasium.seed_for

    def recorded(seed: int, index: int) -> int:
        seeds.append(seed_for(seed, index))
        return seeds[-1]

    monkeypatch.setattr(gymnasium, "seed_for", recorded)
    return SerialEngine(plan, bound, made, seed=3, horizon=10), seeds


@pytest.mark.parametrize("policy", ["fused:devices=1", "single_learner_fine:actors=1"])
@pytest.mark.parametrize("name", WITH_MEMORY)
def test_a_restored_run_remembers_nothing_of_episodes_that_are_over(name, policy, monkeypatch):
    engine, _ = opened(WITH_MEMORY[name], monkeypatch, policy)
    (first,) = [memory_of(r) for r in engine.replicas if "memory" in r.slots]
    engine.start()
    engine.advance(3)
    (later,) = [memory_of(r) for r in engine.replicas if "memory" in r.slots]
    assert any((x != y).any() for x, y in zip(jax.tree.leaves(first), jax.tree.leaves(later), strict=True))
    snapshot = jax.tree.map(np.array, {k: v for k, v in engine.snapshot().items() if k != "root"})
    for target in (engine, opened(WITH_MEMORY[name], monkeypatch, policy)[0]):
        target.restore(snapshot)
        (restored,) = [memory_of(r) for r in target.replicas if "memory" in r.slots]
        jax.tree.map(np.testing.assert_array_equal, restored, first)
        target.advance(2)
        target.close()


def memory_of(replica: Any) -> Any:
    return jax.tree.map(np.array, replica.slots["memory"])


def test_a_restored_run_plays_other_episodes_than_the_run_did_at_first(monkeypatch):
    algorithm = WITH_MEMORY["a window of steps"]
    engine, seeds = opened(algorithm, monkeypatch, "fused:devices=1")
    engine.start()
    engine.advance(3)
    snapshot = jax.tree.map(np.array, {k: v for k, v in engine.snapshot().items() if k != "root"})
    engine.close()
    first = set(seeds)
    again, later = opened(algorithm, monkeypatch, "fused:devices=1")
    assert set(later) == first  # it opens them before it knows that it goes on
    later.clear()
    again.restore(snapshot)
    again.close()
    assert len(later) == len(first) == 2
    assert not set(later) & first


def test_seeds_depend_on_the_update_and_on_the_life():
    found = [environment_seed(1, *begun) for begun in ((0, 0), (0, 1), (0, 2), (5, 0), (5, 1), (6, 0))]
    assert found[0] == 1
    assert len(set(found)) == len(found)
    assert all(0 <= seed < 2**63 for seed in found)
    assert environment_seed(-1, 5) >= 0


@pytest.mark.usefixtures("notes")
def test_a_replaced_actor_plays_episodes_that_its_predecessor_has_not_played(monkeypatch):
    advance, killed = LocalEngine.advance, []

    def advancing(engine: LocalEngine, count: int, ahead: int = 0) -> Any:
        if not killed and engine.done >= 5:
            killed.append(engine.processes()["env+act/0"])
            os.kill(killed[0], signal.SIGKILL)
        return advance(engine, min(count, 5), ahead)

    monkeypatch.setattr(LocalEngine, "advance", advancing)
    result = tessera.train(
        MATCH, "py:broken_envs.Noting", "single_learner_coarse:actors=2,mode=async", steps=8 * 16 * 60, envs=16, seed=1,
        eval_episodes=2, quiet=True,
    )  # fmt: skip
    assert result.summary["restarts"] == 1
    noted = [path.name.split("-") for path in notes_of(os.getpid()).iterdir()]
    processes = Counter(pid for _, pid in noted)
    assert processes[str(killed[0])] == 8
    assert len(processes) == 3  # two actors and a successor
    assert len({seed for seed, _ in noted}) == len(noted) == 24
