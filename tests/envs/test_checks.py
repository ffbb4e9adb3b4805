"""Checks of environments: each fault is one sentence, for `check_env`, on the command line and before training."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import faulty_envs
import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from worlds import Forbidding, ForbiddingHost

import tessera
from tessera.cli.main import main
from tessera.errors import TesseraError

REFUSED = {
    "NoObservationSpace": "observation_space of .* is missing",
    "NoActionSpace": "action_space of .* is missing",
    "TextSpace": "networks take arrays of one size",
    "WholeBox": "no algorithm here gives",
    "FourValues": r"step\(\) of .* returns 4 values, .* before 0.26 had four",
    "OnlyObservation": r"returns one array, and must return \(observation, info\)",
    "NoSeed": "takes no seed",
    "NoInfo": "returns a NoneType for info",
    "OtherShape": r"of shape \[3\], and its space has shape \[2\]",
    "Fractions": "with fractions, and its space has whole numbers",
    "Words": "'left', and it must be numbers",
    "NotFinite": "numbers that are not finite",
    "NoReward": "the reward None, which is no number",
    "RewardList": "the reward array.* which is no number",
    "NaNReward": "the reward nan",
    "NumberFlags": "returns 0 for terminated, and it must be True or False",
    "CannotBeMade": r"raised RuntimeError \(no licence\)",
    "NoSpec": "has no spec, and networks are made for it",
    "GymnasiumSpec": "has the spec Spec",
    "StateShape": r"returns float32\[3\] for state\['seen'\], which reset\(\) returns as float32\[2\]",
    "StateType": r"returns float32\[\] for state\['time'\], which reset\(\) returns as int32",
    "StateStructure": "another structure than reset",
    "PythonIf": r"needs the value of an array in Python at faulty_envs.py:\d+ .*jnp.where",
    "NumpyCall": r"needs the value of an array in Python at faulty_envs.py:\d+",
    "OtherObservation": r"an observation float32\[2\], and its spec says float32\[4\]",
    "WholeObservation": r"an observation int32\[2\], and its spec says float32\[2\]",
    "FourDeviceValues": "returns 4 values, and must return",
    "OnlyState": r"reset\(\) of .* returns one value \(dict\)",
    "WholeReward": r"the reward int32\[\]",
    "VectorReward": r"the reward float32\[1\], and it must be float32\[\]",
    "RealFlag": r"returns float32\[\] for terminated",
    "Misspelt": r"raised KeyError at faulty_envs.py:\d+ \('tmie'\)",
    "TeamWithoutSpaces": r"observation_space\('bob'\) of .* gives no space",
    "TeamWithoutAgents": "has no possible_agents",
    "TeamOfFour": "returns 4 values, and must return",
    "TeamWithoutObservation": "no observation for bob",
    "TeamShape": r"of shape \[3\], and its space has shape \[2\]",
    "TeamReward": "the reward inf",
    "TeamReset": r"returns one value \(dict\), and must return \(observations, infos\)",
}
"""Fault -> its sentence; all of these are refused before training too."""

FOUND = {
    "OutOfBounds": ("error", "outside of the bounds of its space"),
    "SeedIgnored": ("error", "with the same seed lead to different episodes"),
    "TooLong": ("error", "end after 20 steps, and one went on for"),
    "ResetsItself": ("error", "resets itself at the end"),
    "AllForbidden": ("error", "forbids every action"),
    "NotFiniteDevice": ("error", "observes numbers that are not finite"),
    "TooLongDevice": ("error", "end after 3 steps, and one went on for 5"),
    "Doubles": ("warning", "observes float64 and its space says float32"),
    "BothFlags": ("warning", "terminates and truncates in the same step"),
    "OneSeed": ("warning", "different seeds start .* alike"),
    "Endless": ("warning", "no episode of .* ended"),
    "StartsAgain": ("warning", "ends with its first observation"),
    "EndlessDevice": ("warning", "no episode of .* ended"),
    "BothDevice": ("warning", "terminates and truncates in the same step"),
}
"""Fault that only playing shows -> its level and sentence."""


def one_sentence(text: str) -> bool:
    return "\n" not in text and len(text) < 400


@pytest.mark.parametrize("fault", REFUSED)
def test_a_fault_is_found_and_refused_before_training(fault, tmp_path):
    env = getattr(faulty_envs, fault)
    (finding,) = tessera.check_env(env, steps=100).findings
    assert finding.level == "error"
    algorithm = (tessera.MAPPO if fault.startswith("Team") else tessera.A2C)(widths=(8,))
    with pytest.raises(TesseraError, match=REFUSED[fault]) as refused:
        tessera.train(algorithm, env, steps=100, envs=2, run_dir=tmp_path / "run", quiet=True)
    assert (str(refused.value), refused.value.exit_code) == (finding.text, 2)
    assert one_sentence(finding.text)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("fault", FOUND)
def test_a_fault_that_only_playing_shows_is_found(fault):
    level, words = FOUND[fault]
    report = tessera.check_env(getattr(faulty_envs, fault), steps=100)
    (finding,) = report.findings
    assert finding.level == level
    assert re.search(words, finding.text)
    assert one_sentence(finding.text)
    assert report.ok == (level == "warning")


@pytest.mark.parametrize("fault", ["OutOfBounds", "BothFlags", "StartsAgain"])
def test_what_can_be_trained_in_is_not_refused(fault):
    env = getattr(faulty_envs, fault)
    result = tessera.train(tessera.A2C(widths=(8,), unroll=8), env, steps=64, envs=2, eval_episodes=1, quiet=True)
    assert result.summary["env_steps"] >= 64


@pytest.mark.parametrize("env", ["Sound", "SoundDevice", "SoundTeam"])
def test_nothing_is_found_in_a_sound_environment_and_the_report_says_what_was_checked(env):
    report = tessera.check_env(getattr(faulty_envs, env), steps=200)
    assert report.findings == []
    assert (report.steps, report.episodes) == (200, 40)
    assert str(report).startswith("checked ")
    assert "200 steps and 40 ends of episodes" in str(report)
    assert str(report).endswith("steps/s; no errors, no warnings")


@pytest.mark.parametrize(
    "env",
    [
        "CartPole-v1",
        "CartPole-v1?time_limit=9&repeat=2",
        "gymnax:CartPole-v1?stack=2&time_limit=30",
        "gymnax:Pendulum-v1?normalise",
        "Taxi-v4",
    ],
)
def test_environments_of_others_pass_with_wrappers_too(env):
    assert tessera.check_env(env, steps=300).findings == []


def test_masks_are_heeded_while_playing():
    report = tessera.check_env(Masked, steps=50)
    assert report.findings == []


class Masked(faulty_envs.Sound):
    """Takes only what its mask allows."""

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed)
        return observation, {"action_mask": np.int8([0, 1])}

    def step(self, action):
        assert action == 1
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"action_mask": np.int8([0, 1])}


def test_an_exception_of_the_environment_is_named_with_its_line():
    class Raises(faulty_envs.Sound):
        def step(self, action):
            raise ValueError("the arm is stuck")

    (finding,) = tessera.check_env(Raises).findings
    assert "step() of" in finding.text
    assert "raised ValueError at test_checks.py:" in finding.text
    assert "the arm is stuck" in finding.text


def test_the_command_prints_all_findings_and_exits_2_where_there_is_an_error(capsys):
    with pytest.raises(SystemExit) as left:
        main(["check", "py:faulty_envs.AllForbidden", "--steps", "50"])
    assert left.value.code == 2
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("error: the action mask")
    assert shown[-1].endswith("1 error, no warnings")
    main(["check", "py:faulty_envs.BothFlags", "--steps", "50"])
    assert capsys.readouterr().out.startswith("warning: ")
    with pytest.raises(SystemExit) as left:
        main(["check", "py:faulty_envs.PythonIf"])
    assert left.value.code == 2
    with pytest.raises(SystemExit) as left:
        main(["check", "CartPool-v1"])
    assert left.value.code == 2
    assert "did you mean 'CartPole-v1'" in capsys.readouterr().err


@pytest.mark.parametrize("fault", ["FourValues", "StateShape", "PythonIf"])
def test_training_from_the_command_line_says_one_sentence_and_leaves_nothing(fault, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(["train", "a2c", f"py:faulty_envs.{fault}", "--run-dir", "run"])
    said = capsys.readouterr()
    assert (left.value.code, said.err.count("\n"), list(Path(tmp_path).iterdir())) == (2, 1, [])


def test_each_family_names_itself():
    assert isinstance(faulty_envs.Sound(), gymnasium.Env)
    assert tessera.check_env(faulty_envs.SoundTeam).spaces == "observations float32[2, 2], 2 actions, 2 agents"


class MaskOnlyInStep(ForbiddingHost):
    def reset(self, **more: Any) -> Any:
        return super().reset(**more)[0], {}

    def step(self, action: Any) -> Any:
        return super().step(3 + int(np.argmax(self._legal)))  # whatever is played, since nobody knows what is allowed


class MaskOnlyInReset(ForbiddingHost):
    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], {}


class ShortMask(ForbiddingHost):
    def reset(self, **more: Any) -> Any:
        return super().reset(**more)[0], {"action_mask": np.ones(3, np.int8)}


class EmptyMask(ForbiddingHost):
    def reset(self, **more: Any) -> Any:
        return super().reset(**more)[0], {"action_mask": np.zeros(5, np.int8)}


class NothingAllowed(Forbidding):
    def legal(self, state: Any) -> Any:
        return jnp.zeros(5, bool)

    def step(self, state: Any, action: Any, key: Any) -> Any:
        after, observation, _, *ends = super().step(state, action, key)
        return after, observation, jnp.float32(0), *ends


class NeedsMore(ForbiddingHost):
    def __init__(self, size: int) -> None:
        del size


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (MaskOnlyInStep, r"gives info\['action_mask'\] in step\(\) and not in reset\(\)"),
        (MaskOnlyInReset, r"gives info\['action_mask'\] in reset\(\) and not in step\(\)"),
        (ShortMask, "has 3 entries, and there are 5 actions"),
        (EmptyMask, "forbids every action while the episode goes on"),
        (NeedsMore, "cannot be made without arguments .missing a required argument: 'size'.: give them"),
        ("CartPole-v1?wrap=gymnasium.wrappers:TimeLimit", "a wrapper gets the environment alone"),
        ("CartPole-v1?stak=4", "did you mean stack"),
    ],
)
def test_faulty_masks_and_arguments_are_refused_before_a_run(env, sentence, tmp_path):
    with pytest.raises(tessera.TesseraError, match=sentence):
        tessera.train(tessera.PPO(), env, steps=100, run_dir=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_device_environment_that_allows_nothing_is_found_by_playing():
    report = tessera.check_env(NothingAllowed())
    assert any("forbids every action" in str(finding) for finding in report.errors)
    assert tessera.check_env(Forbidding()).ok
    assert tessera.check_env(ForbiddingHost).ok
