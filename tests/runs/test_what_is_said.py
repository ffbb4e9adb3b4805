"""What a run says of itself: its name, its steps, its speed and its evaluations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gymnasium.envs.classic_control import CartPoleEnv

import tessera
from tessera.cli.main import main
from tessera.errors import EnvironmentFailed
from tessera.planning.prepare import planned_updates, prepare_plan
from tessera.runs.directory import run_name
from tessera.runs.display import rounding_hint

CARTPOLE = "gymnax:CartPole-v1"
SMALL = tessera.A2C(unroll=8, widths=(8,))
OPTIONS: dict[str, Any] = {"envs": 8, "eval_episodes": 2, "policy": "fused:devices=1"}


def said_of(algorithm: tessera.Algorithm, steps: int) -> str:
    """What is said of a number of steps with 8 environments."""
    bound, _, plan = prepare_plan(algorithm, CARTPOLE, "fused:devices=1", envs=8)
    return rounding_hint(bound.schedule, plan, steps, planned_updates(bound, plan, steps))


def test_steps_that_are_no_whole_updates_are_said() -> None:
    assert said_of(SMALL, 6400) == ""
    assert said_of(SMALL, 6401) == "6,401 steps become 6,464: an update is 64 steps"
    assert said_of(SMALL, 1) == "1 steps become 64: an update is 64 steps"
    replay = tessera.DQN(unroll=4, warmup=10)
    assert said_of(replay, 320 + 64) == ""
    assert said_of(replay, 400) == "400 steps become 416: an update is 32 steps, and 320 come before the first"


def test_the_table_of_a_plan_names_the_system_and_the_steps_of_an_update(capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", "rainbow", CARTPOLE, "--envs", "8"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("system    rainbow: ")
    assert lines[-1] == "an update is 32 steps, and 1,024 come before the first"
    main(["plan", "ppo", CARTPOLE])
    assert capsys.readouterr().out.startswith("plan      ppo on ")


def test_a_system_goes_by_its_name_and_that_of_its_algorithm() -> None:
    assert run_name({"system": "rainbow", "algorithm": {"name": "c51"}}) == "rainbow (c51)"
    assert run_name({"system": "ppo", "algorithm": {"name": "ppo"}}) == "ppo"
    assert run_name({"algorithm": {"name": "ppo"}}) == "ppo"


def test_a_run_says_its_name_its_steps_and_each_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    tessera.train(SMALL, CARTPOLE, steps=250, system="mine", run_dir=folder, evaluate_every=2, **OPTIONS)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("mine (a2c) on gymnax:CartPole-v1, ")
    assert lines[1] == "250 steps become 256: an update is 64 steps"
    assert "steps/s" not in lines[2], "one update is no time to measure"
    played = [line for line in lines if line.startswith("evaluation at update ")]
    assert [line.split()[3] for line in played] == ["2", "4"]
    assert " ± " in played[0]
    assert played[0].endswith(" over 2 episodes  best so far")
    agent = tessera.load(folder)
    assert repr(agent) == f"<agent of {folder}: mine (a2c) on {CARTPOLE}, update 4>"
    assert json.loads((folder / "summary.json").read_text())["system"] == agent.config["system"] == "mine"


class Seen(tessera.Callback):
    """Notes which evaluations were the best."""

    def __init__(self) -> None:
        self.best: list[bool] = []

    def on_evaluation(self, event: tessera.EvaluationEvent) -> None:
        """Note it."""
        self.best.append(event.best)


def test_a_run_of_one_update_shows_no_rate_and_evaluations_that_never_came(capsys: pytest.CaptureFixture[str]) -> None:
    seen = Seen()
    result = tessera.train(SMALL, CARTPOLE, steps=64, evaluate_every=2, callbacks=[seen], **OPTIONS)
    assert seen.best == [True], "the first evaluation, here that at the end, is the best so far"
    assert result.summary["steps_per_second"] is None
    said = capsys.readouterr().out
    assert "steps/s" not in said
    assert "--evaluate-every 2: the run was over before the first evaluation was" in said.splitlines()


class Failing(CartPoleEnv):
    """Ends badly in its twentieth step."""

    played = 0
    error: type[BaseException] = ValueError

    def step(self, action: Any) -> Any:
        """Play on, or not."""
        self.played += 1
        if self.played == 20:
            raise self.error("the pole broke")
        return super().step(action)


class Leaving(Failing):
    """Ends the process, or would."""

    error = SystemExit


@pytest.mark.parametrize(("env", "name"), [(Failing, "ValueError"), (Leaving, "SystemExit")])
def test_what_an_environment_raises_is_one_sentence_and_a_traceback_of_its_own(env: type, name: str, tmp_path) -> None:
    options = {**OPTIONS, "policy": "single_learner_coarse:actors=2", "engine": "serial", "checkpoint_every": 0.0}
    with pytest.raises(EnvironmentFailed) as caught:
        tessera.train(SMALL, env, steps=10_000, run_dir=tmp_path / "run", quiet=True, **options)
    said = str(caught.value)
    assert f".{env.__name__} raised {name} (the pole broke) in step 20 of replica env+act/0; update " in said
    assert said.endswith(f" is saved in {tmp_path / 'run'}, --resume goes on from there")
    trace = caught.value.trace()
    assert trace.endswith(f"{name}: the pole broke")
    assert trace.count("  File ") == 1
