"""Presets: each fits its algorithm, is found by environment or name, and gives way to flags."""

import dataclasses
import json

import pytest

import tessera
from tessera import algorithms
from tessera.cli.main import main
from tessera.errors import TesseraError
from tessera.presets import find_preset, presets_of
from tessera.support.fields import options_of

ALL = [preset for name in algorithms.ALGORITHMS for preset in presets_of(name).values()]


@pytest.mark.parametrize("preset", ALL, ids=lambda preset: f"{preset.algorithm_name}-{preset.name}")
def test_a_preset_sets_fields_that_its_algorithm_has_and_says_where_they_come_from(preset):
    known = {f.name for f in options_of(algorithms.get(preset.algorithm_name))}
    assert set(preset.settings) <= known
    assert preset.source
    assert preset.environments
    made = dataclasses.asdict(preset.algorithm)
    assert all(made[name] == value for name, value in preset.settings.items())


@pytest.mark.parametrize(
    ("algorithm", "env", "name"),
    [
        ("ppo", "Hopper-v5", "mujoco"),
        ("ppo", "gymnasium:Walker2d-v5", "mujoco"),
        ("ppo", "gymnax:Breakout-MinAtar", "breakout"),
        ("dqn", "gymnax:Asterix-MinAtar?sticky=0.1", "asterix"),
        ("dqn", "gymnax:Freeway-MinAtar?sticky=0.1", "minatar"),
        ("dqn", "ale:pong", "atari"),
    ],
)
def test_a_preset_is_found_by_the_environment(algorithm, env, name):
    assert tessera.preset(algorithm, env).name == name


def test_an_unknown_environment_or_name_gets_a_sentence():
    with pytest.raises(TesseraError, match=r"no preset of ppo is meant for gymnax:CartPole-v1; it has .*mujoco"):
        tessera.preset("ppo", "gymnax:CartPole-v1")
    with pytest.raises(TesseraError, match=r"no preset of a2c is meant for .*; it has none: leave --preset out"):
        tessera.preset("a2c", "gymnax:CartPole-v1")
    with pytest.raises(TesseraError, match="unknown preset of ppo: 'mujico': did you mean 'mujoco'"):
        find_preset("ppo", "Hopper-v5", "mujico")


@pytest.mark.parametrize("flags", [["--preset"], ["--preset", "auto"], ["--preset=breakout"]])
def test_the_command_line_takes_a_presets_settings_where_no_flag_says_otherwise(flags, tmp_path, capsys):
    folder = tmp_path / "run"
    small = ["--steps", "256", "--envs", "8", "--unroll", "16", "--epochs", "1", "--minibatches", "2"]
    more = ["--eval-episodes", "1", "--run-dir", str(folder)]
    main(["train", "ppo", *flags, *small, *more, "gymnax:Breakout-MinAtar"])
    config = json.loads((folder / "config.json").read_text())
    assert config["preset"] == "breakout"
    assert config["algorithm"]["entropy_coefficient"] == 0.03
    assert config["algorithm"]["minibatches"] == 2
    assert (config["envs"], config["steps"]) == (8, 256)
    assert "preset breakout of ppo: a sweep" in "".join(capsys.readouterr())


def test_numbers_of_steps_and_environments_and_the_lag_are_defaults(tmp_path):
    env = "gymnax:CartPole-v1"
    chosen = dataclasses.replace(presets_of("ppo")["mujoco"], steps=128, lag=2, settings={"unroll": 16})
    algorithm = tessera.PPO(unroll=16, minibatches=1, epochs=1)
    found = tessera.train(algorithm, env, preset=chosen, run_dir=tmp_path / "a", eval_episodes=1, quiet=True)
    assert (found.plan.envs, found.plan.lag, found.summary["env_steps"]) == (8, 2, 128)
    other = tessera.train(algorithm, env, preset=chosen, envs=4, lag=0, steps=64, eval_episodes=1, quiet=True)
    assert (other.plan.envs, other.plan.lag, other.summary["env_steps"]) == (4, 0, 64)
    # a preset is where settings came from: a run with the same settings goes on without it
    tessera.train(algorithm, env, envs=8, lag=2, run_dir=tmp_path / "a", resume=True, eval_episodes=1, quiet=True)


def test_small_boards_have_defaults_of_their_own():
    bound = tessera.PPO().bind(tessera.Spec((10, 10, 4), "float32", tessera.Discrete(3)))
    assert (bound.unroll, bound.learning_rate, bound.minibatches) == (128, 5e-3, 8)
