"""What more actors would bring: only where a profile of this machine says so, and never in the way of an answer."""

from __future__ import annotations

import json
import sys

import pytest
from recorded_runs import status, write_run

import tessera
from tessera.cli.more_actors import more_actors
from tessera.dash.advice import Advice
from tessera.dash.answers import Answers
from tessera.engines.simulated.costs import Costs
from tessera.engines.simulated.machine import Machine
from tessera.planning.prepare import prepare_plan
from tessera.profiling.profile import Profile, about, circumstances, save_profile
from tessera.runs.directory import algorithm_config

SAYS = (sys.executable, "-c", "import sys; open(sys.argv[1] + '/asked', 'a').write('x'); print('more would help')")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache with a profile of IMPALA in it."""
    monkeypatch.setenv("TESSERA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache" / "profiles").mkdir(parents=True)
    (tmp_path / "cache" / "profiles" / "impala-1.json").write_text("{}")
    return tmp_path / "cache"


def test_advice_is_asked_for_once_where_the_learner_waits_for_experience(runs, until):
    folder = write_run(runs / "a", status=status())
    (folder / "plan.json").write_text("{}")
    answers = Answers(runs, advice=SAYS)
    assert "more would help" not in answers.run("a")["hints"]
    until(lambda: answers.run("a")["hints"][0] == "more would help")
    assert (folder / "asked").read_text() == "x"


def test_nobody_is_asked_without_need(runs, tmp_path, until):
    busy = {"waited": {"env+act": 0.9, "store+grad+apply": 0.0}, "waited_for": {}}
    for name, said in (("busy", status(**busy)), ("over", status("finished"))):
        (write_run(runs / name, status=said) / "plan.json").write_text("{}")
    other = {"algorithm": {"name": "ppo"}}
    (write_run(runs / "unknown", config=other, status=status()) / "plan.json").write_text("{}")
    (write_run(runs / "asks", status=status()) / "plan.json").write_text("{}")
    answers = Answers(runs, advice=SAYS)
    for name in ("busy", "over", "unknown", "asks"):
        answers.run(name)
    until((runs / "asks" / "asked").exists)
    assert [name for name in ("busy", "over", "unknown") if (runs / name / "asked").exists()] == []


def test_a_command_that_fails_gives_no_advice(tmp_path, until):
    (tmp_path / "run").mkdir()
    fails = Advice((sys.executable, "-c", "import sys; open(sys.argv[1] + '/asked', 'w'); sys.exit(1)"))
    assert fails.about(tmp_path / "run", "impala", 1) == ""
    until((tmp_path / "run" / "asked").exists)
    assert fails.about(tmp_path / "run", "impala", 1) == ""


COSTS = Costs({"act observed -> actions": ((1, 0.001), (16, 0.016))})
"""A step of acting takes a millisecond for each environment."""
POLICY = "single_learner_coarse:actors=2,mode=async"


@pytest.fixture
def trained(tmp_path):
    """A folder as a run under POLICY begins it, and what a profile of it would be about."""
    bound, env, plan = prepare_plan(tessera.IMPALA(), "gymnax:CartPole-v1", POLICY, engine="local")
    world = {"env": plan.env, "envs": plan.envs, "groups": plan.groups, "lag": plan.lag, "engine": plan.engine}
    config = {"algorithm": algorithm_config(bound), "policy": plan.policy, "precision": "f32", "seed": 0, **world}
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "plan.json").write_text(json.dumps(plan.to_json()))
    return folder, bound, env, plan


def test_a_profile_says_how_fast_more_actors_would_be(trained):
    folder, bound, env, plan = trained
    assert more_actors(folder) == ""  # no profile yet
    machine = Machine(cores=8, accelerators=0, memory=2**34, accelerator_memory=0)
    save_profile(Profile(COSTS, machine, about(bound, env, plan), circumstances(), 0.0, 1.0))
    said = more_actors(folder)
    assert said.startswith("By the profile of this machine, 4 replicas of env+act instead of 2 would be faster: ")


def test_a_folder_that_names_code_runs_none(trained, tmp_path, monkeypatch):
    folder = trained[0]
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    config = json.loads((folder / "config.json").read_text())
    for change in ({"env": "py:evil.Env"}, {"algorithm": {**config["algorithm"], "class": "evil.Algorithm"}}):
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(tessera.TesseraError):
            more_actors(folder)
    assert not (tmp_path / "ran").exists()
