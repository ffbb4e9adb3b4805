"""--init-from: a run starts from another run's params, says so in its config, and needs the other no more."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import tessera
from tessera.algorithms.contract import FirstParams
from tessera.cli.main import main
from tessera.errors import TesseraError
from tessera.planning.prepare import prepare_plan
from tessera.program.agents import own_training
from tessera.program.initial import initial_state, population_slots
from tessera.program.training_program import Training
from tessera.runs.checkpoint import Checkpoints
from tessera.runs.init_from import read_start
from tessera.support.files import read_json, write_json

CARTPOLE = "gymnax:CartPole-v1"
SMALL = tessera.A2C(unroll=8, widths=(8,))
UPDATE = 8 * 8
OPTIONS: dict[str, Any] = {"envs": 8, "eval_episodes": 2, "quiet": True}
SERIAL = "fused:devices=1"


def same(a: Any, b: Any) -> bool:
    return jax.tree.structure(a) == jax.tree.structure(b) and jax.tree.all(jax.tree.map(np.array_equal, a, b))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three updates that has evaluated its second."""
    folder = tmp_path_factory.mktemp("source") / "run"
    tessera.train(SMALL, CARTPOLE, SERIAL, steps=3 * UPDATE, run_dir=folder, evaluate_every=2, **OPTIONS)
    return folder


def starts(policy: str, engine: str, source: str, **options: Any) -> Any:
    """The params with which a run starts: it makes one update, with a learning rate of nothing."""
    still = replace(SMALL, learning_rate=0.0)
    options = {**OPTIONS, "policy": policy, "engine": engine, "steps": UPDATE, "seed": 7, **options}
    return tessera.train(still, CARTPOLE, init_from=source, **options)


@pytest.mark.parametrize(("policy", "engine"), [(SERIAL, "serial"), ("single_learner_coarse:actors=1", "local")])
def test_a_run_starts_from_the_params_of_another(policy, engine, source, tmp_path) -> None:
    result = starts(policy, engine, str(source), run_dir=tmp_path / "run")
    agent = tessera.load(source)
    assert same(result.params, agent.params)
    assert result.summary["updates"] == 1
    record = {"run": str(source), "checkpoint": "newest", "update": 3}
    assert read_json(tmp_path / "run" / "config.json")["init_from"] == record


def test_moments_come_along_and_optimiser_target_and_clock_are_new(tmp_path) -> None:
    bound, _, _ = prepare_plan(tessera.PPO(unroll=8, widths=(8,)), "gymnax:Pendulum-v1", SERIAL, envs=8)
    saved = filled(bound, 3)
    write_json(tmp_path / "config.json", {"algorithm": {}, "env": "", "policy": "", "precision": "", "seed": 0})
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(5, {"state": saved}, {})
    checkpoints.close()
    first, record = read_start(tmp_path, None, False, None, bound)
    assert record == {"run": str(tmp_path), "checkpoint": "newest", "update": 5}
    assert first is not None
    state = jax.jit(lambda: initial_state(bound, jax.random.key(0), 1, first.trees))()
    assert same(state.params, saved.params)
    assert same(state.statistics, saved.statistics)
    assert jax.tree.leaves(saved.statistics)
    assert same(state.optimizer, jax.jit(bound.start)(saved.params).optimizer)
    assert int(state.clock.applies) == 0


def filled(algorithm: Any, value: float) -> Any:
    """A state all of whose numbers are the same."""
    shapes = jax.eval_shape(lambda key: initial_state(algorithm, key, 1), jax.random.key(0))
    return jax.tree.map(lambda x: np.full(x.shape, value, x.dtype), shapes)


def started_from(algorithm: Any, value: float) -> Any:
    """The algorithm, to start from a state like that."""
    state = filled(algorithm, value)
    return replace(algorithm, first_params=FirstParams(state.params, state.statistics))


def test_seeds_in_one_program_start_from_the_same_params() -> None:
    bound, env, plan = prepare_plan(SMALL, CARTPOLE, SERIAL, envs=8)
    slots = population_slots(Training(started_from(bound, 3), env, plan.groups), plan, [0, 1], 1)
    for params in (slots["state"].params, slots["acting"].params):
        assert all(leaf.shape[0] == 2 and np.all(leaf == 3) for leaf in jax.tree.leaves(params))


def test_replicas_that_learn_for_some_agents_start_from_their_part() -> None:
    algorithm = tessera.MAPPO(unroll=4, widths=(8,), minibatches=1, separate=True)
    bound, env, plan = prepare_plan(algorithm, "jaxmarl:MPE_simple_spread_v3", "environments:workers=1", envs=8)
    learner = next(k for k, placed in enumerate(plan.fragments) if placed.agents)
    state = filled(bound, 0)
    numbered = jax.tree.map(lambda x: x + np.arange(len(x)).reshape(-1, *[1] * (x.ndim - 1)), state.params)
    whole = Training(replace(bound, first_params=FirstParams(numbered, state.statistics)), env, plan.groups)
    for number in range(2):
        mine = own_training(whole, plan, learner, number).algorithm.first_params
        assert mine is not None
        assert all(leaf.shape[0] == 1 and np.all(leaf == number) for leaf in jax.tree.leaves(mine.params))


def test_params_are_compared_by_content() -> None:
    one, other, third = (FirstParams({"w": np.full(2, x)}, ()) for x in (1, 1, 2))
    assert one == other != third
    assert hash(one) == hash(other)


def test_a_resumed_run_needs_the_other_no_more_and_makes_the_same_params(source, tmp_path) -> None:
    other = shutil.copytree(source, tmp_path / "other")
    options = {**OPTIONS, "policy": SERIAL, "run_dir": tmp_path / "run"}
    tessera.train(SMALL, CARTPOLE, steps=2 * UPDATE, init_from=other, **options)
    with pytest.raises(TesseraError, match=r"was begun from .*other@newest: leave --init-from .* out to go on with it"):
        tessera.train(SMALL, CARTPOLE, steps=4 * UPDATE, resume=True, init_from=source, **options)
    shutil.rmtree(other)
    for more in ({}, {"init_from": str(other)}):
        result = tessera.train(SMALL, CARTPOLE, steps=4 * UPDATE, resume=True, **more, **options)
    assert result.summary["updates"] == 4
    assert read_json(tmp_path / "run" / "config.json")["init_from"]["run"] == str(other)
    agent = tessera.load(tmp_path / "run")
    agent.train(UPDATE, policy=SERIAL, quiet=True, eval_episodes=2)
    assert agent.update == 5


@pytest.mark.slow
def test_a_run_without_a_checkpoint_yet_reads_the_other_again(source, tmp_path) -> None:
    folder, options = tmp_path / "run", {**OPTIONS, "policy": SERIAL, "steps": 2 * UPDATE}
    whole = tessera.train(SMALL, CARTPOLE, init_from=source, run_dir=folder, **options)
    shutil.rmtree(folder / "checkpoints")
    again = tessera.train(SMALL, CARTPOLE, run_dir=folder, resume=True, **options)
    assert same(again.params, whole.params)
    shutil.rmtree(folder / "checkpoints")
    write_json(folder / "config.json", {**read_json(folder / "config.json"), "init_from": {"run": 3}})
    with pytest.raises(TesseraError, match=r"config.json is damaged: 'init_from' names no run"):
        tessera.train(SMALL, CARTPOLE, run_dir=folder, resume=True, **options)


def test_the_other_folder_decides_nothing_but_numbers(source, tmp_path) -> None:
    """Its config.json may name whatever it likes: nothing is imported from there."""
    other = shutil.copytree(source, tmp_path / "other")
    config = read_json(other / "config.json")
    config["algorithm"]["class"], config["env"] = "antigravity.Algorithm", "py:antigravity.Env"
    write_json(other / "config.json", config)
    result = starts(SERIAL, "serial", str(other))
    assert same(result.params, tessera.load(source).params)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--init-from nowhere", "--init-from: nowhere is not a run directory: it has no config.json"),
        ("--init-from SOURCE@9", "--init-from: SOURCE has no checkpoint 9: it keeps those of update"),
        ("--init-from SOURCE@worst", "--init-from worst: choose newest, best, or the number of an update"),
        ("--init-from SOURCE --widths 16", "its params/params/policy_head/kernel has shape (8, 2), and (16, 2) is "
                                           "needed): choose a run with the same network and environment"),
        ("--init-from SOURCE --widths 8 8", "params of its a2c do not fit this run's a2c (it lacks "
                                            "params/params/policy_torso/Dense_1/bias): choose a run"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_sentence_and_nothing_is_written(flags, words, source, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = flags.replace("SOURCE", str(source)).split()
    small = [] if "--widths" in flags else ["--widths", "8"]
    with pytest.raises(SystemExit) as left:
        main(["train", "a2c", CARTPOLE, "--unroll", "8", *small, *given])
    said = capsys.readouterr().err
    assert left.value.code == 2
    assert words.replace("SOURCE", str(source)) in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_folder_of_several_seeds_is_not_one_run(source, tmp_path) -> None:
    shutil.copytree(source, tmp_path / "seed-0")
    config = json.loads((source / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "seeds": 1}))
    with pytest.raises(TesseraError, match=r"--init-from: .* holds several seeds: name one of them, such as .*seed-0"):
        starts(SERIAL, "serial", str(tmp_path))
