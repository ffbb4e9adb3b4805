"""Evolution strategies: the update by hand, one seed and one score per evaluation, and replicas that agree."""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tessera
from tessera import ES, TesseraError, View, envs
from tessera.algorithms.contract import Clock
from tessera.algorithms.es import MemberScore
from tessera.engines.local import LocalEngine
from tessera.engines.serial import SerialEngine
from tessera.maths.evolution import noise
from tessera.planning.prepare import prepare_plan

ENV = "gymnax:CartPole-v1"
SMALL = ES(unroll=32, members=32, widths=(8,))


def bound(**options: Any) -> ES:
    return ES(widths=(4,), **options).bind(envs.make(ENV).spec)


def view_of(algorithm: ES) -> View:
    params = algorithm.init(jax.random.key(1))
    return View(params, (), (), Clock(jnp.int32(0), jnp.int32(1)))


def test_the_gradient_is_the_formula():
    algorithm = bound(sigma=0.2)
    view = view_of(algorithm)
    seeds = jnp.stack([jax.random.key_data(jax.random.key(k)) for k in (5, 6)])
    score = jnp.asarray([[4.0, 1.0], [2.0, 3.0]])
    gradients, feedback = algorithm.gradient(view, MemberScore(seeds, score), score[None], jax.random.key(0))
    # ranks of 4 1 2 3 are 3 0 1 2, so shaped (1/2, -1/2), (-1/6, 1/6); members are seed 5 with and against, 6 likewise
    shaped = [[0.5, -0.5], [-1 / 6, 1 / 6]]
    drawn = [noise(seed, view.params) for seed in seeds]
    climbed = jax.tree.map(
        lambda a, b: (shaped[0][0] * a - shaped[0][1] * a + shaped[1][0] * b - shaped[1][1] * b) / (4 * 0.2), *drawn
    )
    jax.tree.map(lambda g, c: np.testing.assert_allclose(g, -c, rtol=1e-4, atol=1e-6), gradients, climbed)
    assert float(feedback.metrics["score"]) == 2.5


def test_a_pair_is_the_params_with_the_noise_and_against_it():
    algorithm = bound(sigma=0.5)
    view = view_of(algorithm)
    members = [algorithm.ready(view, algorithm.memory(jnp.int32(i)), jax.random.key(2)) for i in range(4)]
    middle = jax.tree.map(lambda a, b: (a + b) / 2, members[0].params, members[1].params)
    jax.tree.map(lambda m, p: np.testing.assert_allclose(m, p, atol=1e-6), middle, view.params)
    assert (members[0].seed == members[1].seed).all()
    assert (members[2].seed != members[0].seed).any()
    drawn = noise(members[2].seed, view.params)
    jax.tree.map(lambda m, p, e: np.testing.assert_allclose(m, p + 0.5 * e, atol=1e-6), members[2].params,
                 view.params, drawn)  # fmt: skip


def test_params_are_drawn_to_zero_by_weight_decay():
    algorithm = bound(weight_decay=0.3)
    params = view_of(algorithm).params
    nothing = jax.tree.map(jnp.zeros_like, params)
    steps, _ = algorithm.optimizer.update(nothing, algorithm.optimizer.init(params), params)
    expected, _ = bound(weight_decay=0.0).optimizer.update(
        jax.tree.map(lambda p: 0.3 * p, params), algorithm.optimizer.init(params), params
    )
    jax.tree.map(np.testing.assert_allclose, steps, expected)


def test_a_population_is_evaluated_in_rounds():
    algorithm, _, plan = prepare_plan(ES(members=96), ENV, "fused:devices=1", envs=32)
    assert (algorithm.schedule.rounds, algorithm.schedule.unroll, plan.envs_per_group % 2) == (3, 500, 0)
    with pytest.raises(TesseraError, match=r"--members 40 is no multiple of 32 environments"):
        tessera.train(ES(members=40), ENV, envs=32)
    with pytest.raises(TesseraError, match=r"es needs 2 environments together"):
        tessera.train(ES(), ENV, envs=9)


def evolved(workers: int, updates: int = 3) -> tuple[Any, Any]:
    algorithm, env, plan = prepare_plan(SMALL, ENV, f"mirrored:workers={workers}", envs=16, groups=4)
    engine = SerialEngine(plan, algorithm, env, seed=5, horizon=10)
    try:
        engine.start()
        reports = engine.advance(updates)
        return jax.tree.map(np.array, engine.state().params), reports
    finally:
        engine.close()


def test_any_number_of_workers_gives_identical_params_from_seeds_and_scores():
    (alone, _), *others = (evolved(workers) for workers in (1, 2, 4))
    for params, reports in others:
        jax.tree.map(np.testing.assert_array_equal, params, alone)
        assert set(reports.flows) == {"experience"}  # neither params nor gradients move
        evaluations = 3 * 32
        assert 0 < reports.flows["experience"].bytes / evaluations <= 64


@pytest.mark.slow
def test_a_killed_worker_rejoins_and_agrees(monkeypatch):
    """It gets what the others have learned, plays its members again, and nothing differs by a bit."""
    options: dict[str, Any] = {"envs": 16, "groups": 4, "seed": 5, "steps": 30 * 32 * 32, "quiet": True}
    undisturbed = tessera.train(SMALL, ENV, "mirrored:workers=3", **options)
    advance, killed, notes = LocalEngine.advance, [], []

    def advancing(engine: LocalEngine, count: int, ahead: int = 0) -> Any:
        if not killed and engine.done >= 5:
            killed.append(engine.processes()["env+act+store+grad+apply/1"])
            threading.Timer(0.05, os.kill, (killed[0], signal.SIGKILL)).start()
        return advance(engine, count, ahead)

    monkeypatch.setattr(LocalEngine, "advance", advancing)
    monkeypatch.setattr("tessera.runs.display.Quiet.note", lambda self, text: notes.append(text))
    result = tessera.train(SMALL, ENV, "mirrored:workers=3", **options)
    assert result.summary["restarts"] == 1
    assert any("started again" in note for note in notes)
    assert not any("checkpoint" in note for note in notes)
    jax.tree.map(np.testing.assert_array_equal, result.state.params, undisturbed.state.params)


def test_es_solves_cartpole(tmp_path):
    result = tessera.train(ES(), ENV, "fused:devices=1", seed=1, run_dir=tmp_path / "run", quiet=True)
    assert result.summary["eval_return_mean"] >= 475
    saved = sum(f.stat().st_size for f in (tmp_path / "run" / "checkpoints").rglob("*") if f.is_file())
    assert saved < 1_000_000  # params of members are not saved
    assert json.loads((tmp_path / "run" / "config.json").read_text())["algorithm"]["name"] == "es"


def test_host_environments_evaluate_in_rounds_and_start_new_episodes():
    result = tessera.train(
        ES(unroll=50, members=16, widths=(4,)), "CartPole-v1", "fused", envs=8, steps=3200, quiet=True
    )
    assert result.summary["updates"] == 4
    assert 2400 < result.summary["env_steps"] <= 3200  # less the steps at which nothing but a reset happens
    assert len({row["learn/score"] for row in result.metrics}) == len(result.metrics) > 1
