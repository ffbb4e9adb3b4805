"""`--policy auto`, and what happens where no policy is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tessera
from tessera import A2C, TesseraError
from tessera.cli.main import main
from tessera.engines.simulated.costs import Costs
from tessera.engines.simulated.machine import Machine
from tessera.planning import automatic
from tessera.planning.automatic import prepare_automatically
from tessera.profiling import profile as profiles
from tessera.profiling import take
from tessera.profiling.profile import Profile

DEVICE, HOST = "gymnax:CartPole-v1", "CartPole-v1"
SMALL = A2C(unroll=4, widths=(8,))
FLAGS = ["--envs", "8", "--groups", "8", "--unroll", "4", "--widths", "8"]
OPTIONS: dict[str, Any] = {"envs": 8, "groups": 8}
ACTING = "act observed -> actions"
KNOWN = Profile(
    Costs({ACTING: ((1, 0.125), (8, 1.0))}),
    Machine(2, 0, 64 << 30, 0),
    {"algorithm": "a2c"},
    {},
    taken=0.0,
    seconds=1.0,
)
"""Acting is all that costs anything, so that two processes are twice as fast."""


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No profile is known; which ones are taken."""
    found: list[str] = []

    def take_profile(algorithm: Any, env: Any, plan: Any, progress: Any, seconds: float, before: Any) -> Profile:
        progress("everything", 1.0)
        found.append(plan.env)
        return KNOWN

    monkeypatch.setattr(profiles, "find_profile", lambda *planned: None)
    monkeypatch.setattr(take, "save_profile", lambda profile: None)
    monkeypatch.setattr(take, "take_profile", take_profile)
    return found


@pytest.fixture
def known(taken: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile is saved."""
    monkeypatch.setattr(profiles, "find_profile", lambda *planned: KNOWN)


def prepared(env: str = DEVICE, asked: bool = False, steps: int = 1000, **options: Any) -> Any:
    return prepare_automatically(SMALL, env, asked=asked, steps=steps, **{**OPTIONS, **options})


def test_who_asks_gets_a_profile_and_the_best_plan_with_its_reason(taken):
    lines: list[str] = []
    found = prepared(asked=True, note=lines.append)
    assert taken == [DEVICE]
    assert lines == [f"measuring what a2c costs in {DEVICE}, for up to 60 s; it is kept for later runs"]
    assert [f.replicas for f in found.plan.fragments] == [2]
    assert found.plan.policy == "multi_learner"
    assert found.plan.reason.startswith("multi_learner, because predicted 16 steps/s, about as many as ")
    assert found.prediction.steps_per_second == pytest.approx(4 * 8 / 2.0)


def test_unasked_nothing_is_measured_for_a_short_run(taken):
    assert prepared().plan.policy == "fused"
    assert prepared(HOST, steps=10**5).plan.policy == "fused"
    assert taken == []


def test_unasked_a_long_run_is_worth_a_profile(taken, monkeypatch):
    monkeypatch.setattr("tessera.envs.checks.vector.seconds_of_a_step", lambda env, seconds: 0.01)
    assert not automatic._lasts_long(tessera.envs.make(DEVICE), 10**9)
    assert prepared(HOST, steps=29_000).prediction is None
    assert prepared(HOST, steps=31_000).prediction is not None
    assert taken == [f"gymnasium:{HOST}"]
    assert prepared(HOST, steps=31_000, engine="serial").prediction is None  # the user has chosen


def test_a_saved_profile_is_used_unasked(known):
    assert prepared().plan.policy == "multi_learner"
    assert prepared(engine="serial").plan.policy == "fused"
    assert prepared(asked=True, engine="serial").plan.policy == "fused"


def test_devices_are_not_named_and_chosen_at_once(known):
    with pytest.raises(TesseraError, match="auto chooses devices too: leave out --mesh"):
        prepared(asked=True, mesh="data=2")


def test_the_command_prints_plans_in_order(known, capsys):
    main(["plan", "a2c", DEVICE, "--policy", "auto", *FLAGS])
    shown = capsys.readouterr().out
    assert shown.startswith(
        f"plans     a2c on {DEVICE}, 8 environments in 8 groups, lag 0: all of these learn the same"
    )
    assert "1  env+act+store+grad+apply@2" in shown
    assert "One more core would bring nothing" in shown
    main(["plan", "a2c", DEVICE, "--policy", "auto", "--allow", "async", "--format", "json", *FLAGS])
    found = json.loads(capsys.readouterr().out)
    assert found["candidates"][0]["policy"] == "env+act+store+grad+apply@2"
    assert found["candidates"][0]["steps_per_second"] == pytest.approx(16.0)
    assert found["other_recipes"]
    assert found["one_more"]["core"] == pytest.approx(16.0)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--policy", "auto", "--actors", "2"], "chooses the number of actors too"),
        (["--policy", "auto", "--format", "drawing"], "format 'drawing'"),
        (["--policy", "auto", "--objective", "time"], "--objective time needs --like RUN"),
        (["--policy", "auto", "--objective", "time", "--like", "nowhere"], "nowhere is not a run directory"),
        (["--allow", "async"], "are for --policy auto"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(known, capsys, flags, said):
    with pytest.raises(SystemExit) as left:
        main(["plan", "a2c", DEVICE, *flags, *FLAGS])
    assert left.value.code == 2
    assert said in capsys.readouterr().err


def test_a_run_goes_on_under_the_policy_that_was_found_for_it(tmp_path: Path, monkeypatch):
    """The colouring has no name; plan.json holds it, and its text can be given to --policy again."""
    run, colouring = tmp_path / "run", "env+act+store/grad+apply"
    options: dict[str, Any] = {**OPTIONS, "run_dir": run, "engine": "serial", "quiet": True, "eval_episodes": 1}
    tessera.train(SMALL, DEVICE, colouring, steps=64, **options)
    assert json.loads((run / "config.json").read_text())["policy"] == colouring
    assert json.loads((run / "plan.json").read_text())["colouring"]["fragments"][1]["operators"] == "grad apply"
    for policy in (None, "auto", colouring):
        result = tessera.train(SMALL, DEVICE, policy, steps=64, resume=True, **options)
        assert result.plan.policy == colouring
    with pytest.raises(TesseraError, match="was run with policy"):
        tessera.train(SMALL, DEVICE, "fused", steps=64, resume=True, **options)


def test_time_is_told_by_the_steps_of_a_run_of_the_same_recipe(known, tmp_path: Path, capsys):
    run = tmp_path / "run"
    tessera.train(SMALL, DEVICE, "fused:devices=1", steps=64, run_dir=run, quiet=True, eval_episodes=1, **OPTIONS)
    asked = ["plan", "a2c", DEVICE, "--policy", "auto", "--objective", "time", "--like", str(run), "--format", "json"]
    main([*asked, *FLAGS])
    found = json.loads(capsys.readouterr().out)["candidates"][0]
    assert found["value"] == pytest.approx(64 / 16.0)
    with pytest.raises(SystemExit):
        main([*asked, *FLAGS, "--gamma", "0.5"])
    assert "has another recipe: its gamma = 0.99, not 0.5" in capsys.readouterr().err


def test_several_seeds_and_unknown_recipes_are_refused():
    with pytest.raises(TesseraError, match="auto plans one run"):
        tessera.train(SMALL, DEVICE, "auto", seeds=2, steps=64, quiet=True)
    with pytest.raises(TesseraError, match="recipe to allow: 'asink': did you mean 'async'"):
        tessera.train(SMALL, DEVICE, allow="asink", steps=64, quiet=True)
