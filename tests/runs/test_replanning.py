"""A run that changes its plan: it learns the same, says what it did, and goes on under the newest plan."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import tessera
from tessera.engines.simulated.prediction import Prediction
from tessera.errors import TesseraError
from tessera.graph.plan import Plan
from tessera.planning.planner import Measured
from tessera.planning.prepare import prepare_plan
from tessera.runs import run_options
from tessera.runs.display import Quiet
from tessera.runs.drift import DriftRule
from tessera.runs.plan_history import newest_plan, past_plan, read_plans, write_plans

ENV = "gymnax:CartPole-v1"
AT_ONCE = DriftRule(block_seconds=0.0, blocks=1, outside=1)
"""A rule by which every update shows a drift."""
ALGORITHMS: dict[str, tessera.Algorithm] = {
    "ppo": tessera.PPO(unroll=8, widths=(8,), epochs=2, minibatches=2, normalise_observations=True),
    "dqn": tessera.DQN(
        unroll=8, draws=2, batch=48, capacity=480, warmup=2, widths=(8,), target_period=4, prioritised=True, n_step=3
    ),
}
ONE, ACTORS, SHARDS = "fused:devices=1", "single_learner_coarse:actors=2", "central:workers=2,shards=2"
WORLD: dict[str, Any] = {"envs": 12, "groups": 6}


class Forced:
    """A planner that predicts too much of every plan, and goes through a list of better ones."""

    profiled_at = None

    def __init__(self, *plans: Plan) -> None:
        self.plans, self.asked = list(plans), list[tuple[Plan, Measured]]()

    def predict(self, plan: Plan) -> Prediction | None:
        return Prediction(1e12, 1e9, {f.title: 1.0 for f in plan.fragments}, {})

    def better(self, plan: Plan, measured: Measured) -> Plan | None:
        self.asked.append((plan, measured))
        return self.plans.pop(0) if self.plans else None


def plan_of(name: str, policy: str, **options: Any) -> Plan:
    return replace(prepare_plan(ALGORITHMS[name], ENV, policy, **{**WORLD, **options})[2], reason=f"{policy} is better")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every update drifts, is made by itself and is saved."""
    monkeypatch.setattr("tessera.api.RunOptions", partial(run_options.RunOptions, drift=AT_ONCE))
    monkeypatch.setattr(run_options, "CHUNK_SECONDS", 0.0)
    monkeypatch.setattr(run_options, "SAVING_SHARE", math.inf)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(Quiet, "note", lambda _, text: lines.append(text))
    return lines


def go(name: str, folder: Path, planner: Forced | None = None, updates: int = 5, **more: Any) -> tessera.Result:
    algorithm = ALGORITHMS[name]
    steps = 12 * 8 * (updates + algorithm.schedule.warmup)
    options: dict[str, Any] = {"checkpoint_every": 0.0, "eval_episodes": 1, "quiet": True, "policy": ONE, **WORLD}
    options |= {"planner": planner, "replan": planner is not None}
    return tessera.train(algorithm, ENV, steps=steps, run_dir=folder, **options | more)


@pytest.mark.usefixtures("x64", "at_once")
@pytest.mark.parametrize(
    ("name", "engine", "better"),
    [
        pytest.param("ppo", "serial", (ACTORS, SHARDS), marks=pytest.mark.slow),
        ("dqn", "serial", (SHARDS, ACTORS)),
        pytest.param("ppo", "local", (ACTORS, ONE), marks=pytest.mark.slow),  # how far it gets between checks varies
        pytest.param("dqn", "local", (ACTORS, SHARDS), marks=pytest.mark.slow),
    ],
)
def test_a_run_that_changed_plans_twice_learns_what_one_that_never_did_learns(name, engine, better, tmp_path):
    options = {"precision": "f64", "engine": engine}
    planner = Forced(*(plan_of(name, policy, **options) for policy in better))
    changed, whole = go(name, tmp_path / "changed", planner, **options), go(name, tmp_path / "whole", **options)
    first, second = map(policy_name, better)
    plans = [(plan.update, plan.policy.name) for plan in read_plans(tmp_path / "changed")]
    assert plans == [(0, "fused"), (2, first), (4, second)]
    assert changed.summary["updates"] == whole.summary["updates"] == 5
    assert changed.summary["env_steps"] == whole.summary["env_steps"]
    assert changed.summary["policy"] == second
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9), changed.state, whole.state)


def policy_name(policy: str) -> str:
    return policy.partition(":")[0]


@pytest.mark.usefixtures("at_once")
def test_what_a_run_did_stays_readable(said, tmp_path):
    planner = Forced(plan_of("ppo", ACTORS, engine="serial"))
    result = go("ppo", tmp_path / "run", planner, engine="serial")
    assert json.loads((tmp_path / "run" / "plan.json").read_text()) == json.loads(json.dumps(result.plan.to_json()))
    assert result.plan.policy == "single_learner_coarse"
    drifts = [line for line in said if "below the prediction" in line]
    assert len(drifts) == 2, "one for each plan"
    moved = "update 2: the run goes on under single_learner_coarse: single_learner_coarse:actors=2 is better"
    assert said.count(moved) == 1
    assert [plan.policy for plan, _ in planner.asked] == ["fused", "single_learner_coarse"]
    assert result.summary["predicted"] == {"steps_per_second": 1e12, "lag_mean": 0.0, "lag_max": 0.0}
    assert result.summary["measured"]["steps_per_second"] > 0
    assert result.summary["measured"]["lag_mean"] == 0.0
    assert any("steps/s after the first update, predicted 1,000,000,000,000)" in line for line in said)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["update"] for row in rows] == [1, 2, 3, 4, 5]


@pytest.mark.usefixtures("at_once")
def test_a_plan_that_learns_something_else_is_refused_in_a_sentence(said, tmp_path):
    result = go("ppo", tmp_path / "run", Forced(plan_of("ppo", ACTORS, groups=4, engine="serial")), 3, engine="serial")
    assert result.plan.policy == "fused"
    assert not (tmp_path / "run" / "plans.json").exists()
    assert said.count(
        "the plan stays as it is: a run with groups = 6 cannot change to a plan with 4: it would learn something else; "
        "plan with the same value"
    ) == 1  # fmt: skip


@pytest.mark.usefixtures("at_once")
def test_a_plan_that_cannot_start_leaves_the_run_under_the_one_before(said, tmp_path, monkeypatch):
    def broken(*_: Any, **__: Any) -> None:
        raise TesseraError("there is no room")

    monkeypatch.setattr("tessera.engines.factory.LocalEngine", broken)
    result = go("ppo", tmp_path / "run", Forced(plan_of("ppo", ACTORS)), 3, engine="serial")
    assert result.plan.policy == "fused"
    assert result.summary["updates"] == 3
    assert not (tmp_path / "run" / "plans.json").exists()
    assert "the better plan cannot start (there is no room): the run goes on under the one before" in said


@pytest.mark.usefixtures("at_once")
def test_without_replan_a_drift_is_said_and_the_plan_stays(said, tmp_path):
    planner = Forced(plan_of("ppo", ACTORS, engine="serial"))
    result = go("ppo", tmp_path / "run", planner, 3, engine="serial", replan=False)
    assert result.plan.policy == "fused"
    assert planner.asked == []
    assert len([line for line in said if "below the prediction" in line]) == 1


def test_a_run_without_a_prediction_says_nothing_of_one(tmp_path):
    summary = go("ppo", tmp_path / "run", updates=2).summary
    assert summary["predicted"] is None
    assert summary["measured"] is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"planner": Forced(), "run_dir": None}, "--replan moves at checkpoints"),
        ({"planner": Forced(), "seeds": 2}, "leave --seeds out"),
        ({"planner": None}, "--replan compares a run with its prediction"),
    ],
)
def test_replan_is_refused_where_a_run_could_never_move(options, words, tmp_path):
    given = {"run_dir": tmp_path / "run", **options}
    with pytest.raises(TesseraError, match=words):
        tessera.train(ALGORITHMS["ppo"], ENV, steps=96, replan=True, quiet=True, **given)
    assert not (tmp_path / "run").exists()


NO_ENGINE = {"plans": [{"update": 1, "why": "", "engine": "own", "policy": {}}]}


@pytest.mark.parametrize("text", ["{", '{"plans": 3}', '{"plans": [{"update": 1}]}', json.dumps(NO_ENGINE)])
def test_a_damaged_list_of_plans_is_refused(text, tmp_path):
    (tmp_path / "plans.json").write_text(text)
    with pytest.raises(TesseraError, match=r"plans\.json"):
        read_plans(tmp_path)


def test_a_plan_is_made_again_from_what_the_folder_tells(tmp_path):
    before, after = plan_of("ppo", ONE, lag=1), plan_of("ppo", SHARDS, lag=1)
    write_plans(tmp_path, [past_plan(before, 0), past_plan(after, 7)])
    assert newest_plan(before, read_plans(tmp_path), available=1) == after
    assert newest_plan(before, (), available=1) is before


KILLED = """
    import math, os, signal, sys
    from functools import partial
    sys.path.insert(0, {tests!r})
    import tessera.api
    from tessera.runs import plan_moves, run_options
    import test_replanning as t

    noted = plan_moves.write_change

    def kill(*arguments):
        noted(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    import tessera.runs.run_loop
    tessera.runs.run_loop.write_change = kill
    tessera.api.RunOptions = partial(run_options.RunOptions, drift=t.AT_ONCE)
    run_options.CHUNK_SECONDS, run_options.SAVING_SHARE = 0.0, math.inf
    from pathlib import Path
    options = {{"precision": "f64", "engine": "serial"}}
    t.go("ppo", Path(sys.argv[1]), t.Forced(t.plan_of("ppo", t.ACTORS, **options)), **options)
"""


@pytest.mark.usefixtures("x64")
def test_a_run_that_is_killed_right_after_a_change_goes_on_under_the_newest_plan(said, tmp_path):
    folder = tmp_path / "run"
    code = textwrap.dedent(KILLED).format(tests=str(Path(__file__).parent))
    killed = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "JAX_ENABLE_X64": "1"},
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert [plan.update for plan in read_plans(folder)] == [0, 2]
    options = {"precision": "f64", "engine": "serial"}
    resumed = go("ppo", folder, resume=True, **options)
    assert f"resuming {folder} from update 2" in said
    assert resumed.plan.policy == "single_learner_coarse"
    assert resumed.summary["updates"] == 5
    whole = go("ppo", tmp_path / "whole", **options)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9), resumed.state, whole.state)
