"""The command line: what it refuses, and how; what it prints."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tessera
from tessera import algorithms, policies, systems
from tessera.cli.compare import CompareOptions
from tessera.cli.evaluate import EvalOptions
from tessera.cli.flags import field_docs, whole_number
from tessera.cli.main import main
from tessera.cli.options import COMMON, WorldOptions, parse_arguments, policy_of
from tessera.cli.pairs import PairsOptions
from tessera.cli.plan import PlanOptions
from tessera.cli.train import TrainOptions
from tessera.support.fields import options_of

ENV = "gymnax:CartPole-v1"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in an empty folder, on a sys.path of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))


def tessera_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the real command with one device."""
    environment = {**os.environ, "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    command = [sys.executable, "-m", "tessera", *arguments]
    return subprocess.run(command, env=environment, text=True, capture_output=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("text", "number"), [("7", 7), ("-2", -2), ("1e12", 10**12), ("2.5e3", 2500), ("1E+15", 10**15)]
)
def test_a_whole_number_may_be_written_in_powers_of_ten(text, number):
    assert whole_number(text) == number


@pytest.mark.parametrize("text", ["1.5", "1e-3", "many", "inf", "nan", "1e2000000000", "-1e-400"])
def test_what_is_no_whole_number_is_refused_and_takes_no_time(text):
    with pytest.raises(ValueError, match="invalid literal for int"):
        whole_number(text)


TRAIN = ("train", "ppo", ENV)
REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "command": (("trian",), "unknown command 'trian': did you mean 'train'?"),
    "algorithm": (("train", "pppo", ENV), "unknown system or algorithm 'pppo': did you mean 'ppo'?"),
    "algorithm of a module": (("train", "py:no_such.Thing", ENV), "'py:no_such.Thing' cannot be imported"),
    "algorithm that is none": (("train", "py:json.JSONDecoder", ENV), "is not an Algorithm"),
    "prefix": (("train", "ppo", "gymnx:CartPole-v1"), "unknown environment prefix 'gymnx': did you mean 'gymnax'?"),
    "gymnax id": (("train", "ppo", "gymnax:CartPol-v1"), "environment 'CartPol-v1': did you mean 'CartPole-v1'?"),
    "Gymnasium id": (("train", "ppo", "CartPol-v1"), "environment 'CartPol-v1': did you mean 'CartPole-v1'?"),
    "policy": ((*TRAIN, "--policy", "fusd"), "unknown policy 'fusd': did you mean 'fused'?"),
    "format": (("plan", "ppo", ENV, "--format", "tabel"), "unknown format 'tabel': did you mean 'table'?"),
    "flag": ((*TRAIN, "--unrol", "3"), "unknown flag '--unrol': did you mean '--unroll'?"),
    "flag with a value": ((*TRAIN, "--learning_rat=3"), "unknown flag '--learning-rat': did you mean"),
    "flag of eval": (("eval", "x", "--episode", "3"), "unknown flag '--episode': did you mean '--episodes'?"),
    "a word too many": ((*TRAIN, "more"), "more"),
    "argument of doctor": (("doctor", "now"), "takes no arguments, got 'now'"),
    "number": ((*TRAIN, "--steps", "many"), "--steps many: a whole number is needed"),
    "seed": ((*TRAIN, "--seed", "1.5"), "--seed 1.5: a whole number is needed"),
    "numbers": ((*TRAIN, "--widths", "a", "b"), "--widths a: a whole number is needed"),
    "choice": ((*TRAIN, "--precision", "f3"), "invalid choice 'f3' for argument '--precision'"),
    "number of a field": ((*TRAIN, "--gamma", "big"), "--gamma big: a number is needed"),
    "missing value": ((*TRAIN, "--steps"), "Missing value for argument '--steps'"),
    "missing env": (("train", "ppo"), "Missing from tessera train ppo: STR Environment"),
    "missing run": (("eval",), "nothing to evaluate: name one or more run directories"),
    "no runs to plot": (("plot",), "nothing to plot"),
    "no environments": ((*TRAIN, "--envs", "0"), "--envs 0: at least one environment is needed"),
    "fewer than none": ((*TRAIN, "--envs", "-2"), "--envs -2: at least one environment is needed"),
    "no steps": ((*TRAIN, "--steps", "0"), "--steps 0: at least one step is needed"),
    "more steps than can be counted": ((*TRAIN, "--steps", "1e30"), "--steps is too large: counters have 64 bits"),
    "no evaluation": ((*TRAIN, "--eval-episodes", "0"), "--eval-episodes 0: at least one is needed"),
    "no checkpoints": ((*TRAIN, "--keep", "0"), "--keep 0: at least one is needed"),
    "no episodes": (("eval", "x", "--episodes", "0"), "--episodes 0: at least one is needed"),
    "no workers": (("eval", "x", "--workers", "0"), "--workers 0: at least one is needed"),
    "format of eval": (("eval", "x", "--format", "jsn"), "unknown format 'jsn': did you mean 'json'?"),
    "engine of eval": (("eval", "x", "--engine", "locl"), "invalid choice 'locl' for argument '--engine'"),
    "scale": (("eval", "x", "--scale", "a=1"), "--scale a=1: write ENV=LOW:HIGH"),
    "no such run": (("eval", "x"), "x is not a run directory: it has no config.json"),
    "minibatches": (
        (*TRAIN, "--envs", "1", "--unroll", "6", "--minibatches", "4", "--quiet"),
        "6 rows per group do not divide into 4 minibatches: change --minibatches, --unroll, --envs or --groups",
    ),
    "continuous actions": (("train", "dqn", "gymnax:Pendulum-v1"), "dqn needs one discrete action"),
    "batch": (
        ("train", "dqn", ENV, "--batch", "10", "--envs", "4", "--groups", "4"),
        "--groups 4 does not fit 4 environments, a draw of 10 rows",
    ),
    "resume of nothing": ((*TRAIN, "--resume"), "--resume needs --run-dir"),
    "actors of fused": ((*TRAIN, "--policy", "fused", "--actors", "2"), "policy 'fused' has no actors"),
    "option of a policy": (
        (*TRAIN, "--policy", "central:wokers=2"),
        "option of policy 'central': 'wokers': did you mean 'workers'? its options are workers, shards, mode, lag",
    ),
    "value of an option": ((*TRAIN, "--policy", "central:workers=x"), "option workers=x must be a whole number"),
    "policy file": ((*TRAIN, "--policy", "none.toml"), "policy file none.toml does not exist"),
    "policy of a module": ((*TRAIN, "--policy", "py:json.dumps"), "needs obj=…"),
    "actors twice": (
        (*TRAIN, "--policy", "central:workers=2", "--actors", "3"),
        "--actors 3 and workers=2 in --policy: give one of them",
    ),
    "engine": ((*TRAIN, "--engine", "seral"), "invalid choice 'seral' for argument '--engine'"),
    "timeout": ((*TRAIN, "--timeout", "-1"), "--timeout -1: it cannot be below zero"),
    "trace": ((*TRAIN, "--trace", "no/where/t.json"), "--trace no/where/t.json: there is no folder"),
    "format of pairs": (("pairs", "--format", "tabel"), "unknown format 'tabel': did you mean 'table'?"),
    "flag of pairs": (("pairs", "--en", "x"), "unknown flag '--en': did you mean '--env'?"),
    "nothing to compare": (("compare", "ppo", ENV), "--policies names none"),
    "policy of compare": (("compare", "ppo", ENV, "--policies", "fused,fusd"), "unknown policy 'fusd'"),
    "one policy for compare": (("compare", "ppo", ENV, "--policy", "fused"), "--policy is not for compare"),
    "a pair that does not run": (
        ("compare", "ppo", ENV, "--envs", "2", "--policies", "fused,multi_learner:learners=4"),
        "multi_learner:learners=4: 2 environments cannot be dealt into 4",
    ),
    "actors of none": ((*TRAIN, "--actors", "2"), "--actors needs --policy"),
    "no actors": ((*TRAIN, "--policy", "single_learner_coarse", "--actors", "0"), "asks for 0 replicas"),
    "huge seed": ((*TRAIN, "--seed", "9" * 20), f"--seed {'9' * 20}: it cannot be above 9223372036854775807"),
    "last of many seeds": ((*TRAIN, "--seed", str(2**63 - 2), "--seeds", "3"), "cannot be above 9223372036854775805"),
    "negative lag": ((*TRAIN, "--lag", "-1"), "lag -1"),
}


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must exit 2, printing nothing but one line; give the line."""
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    shown = capsys.readouterr()
    assert left.value.code == 2, shown
    assert shown.out == ""
    assert shown.err.startswith("tessera: ")
    assert shown.err.count("\n") == 1, shown.err
    assert "Traceback" not in shown.err
    return shown.err


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_mistake_exits_2_with_one_line_and_leaves_nothing_on_disk(
    mistake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, message = REFUSED[mistake]
    assert message in refused(capsys, *arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_run_directory_that_is_taken_is_refused_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    (tmp_path / "file").touch()
    assert "run already holds a run: go on with it by --resume" in refused(capsys, *TRAIN, "--run-dir", "run")
    assert "file is a file: choose another --run-dir" in refused(capsys, *TRAIN, "--run-dir", "file")
    assert "file is a file: choose another --run-dir" in refused(capsys, *TRAIN, "--run-dir", "file/sub")
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")) == ["file", "run", "run/config.json"]


@pytest.mark.parametrize("mistake", ["command", "no steps"])
def test_a_real_process_exits_2_without_a_stack_trace(mistake: str, tmp_path: Path) -> None:
    arguments, message = REFUSED[mistake]
    done = tessera_process(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_real_run_prints_plain_lines_and_says_where_the_results_are(tmp_path: Path) -> None:
    flags = "--steps 2000 --envs 8 --unroll 8 --widths 8 --epochs 1 --minibatches 1 --eval-episodes 2 --seed 4"
    done = tessera_process(*TRAIN, *flags.split())
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"ppo on {ENV}, 8 environments, seed 4; policy fused, because ")
    assert lines[1] == "2,000 steps become 2,048: an update is 64 steps"
    assert lines[2].startswith("update 1/32  steps 64  return ")
    assert lines[-3].startswith("update 32/32  steps 2,048  return ")
    assert lines[-2].startswith("greedy return ")
    assert "over 2 episodes" in lines[-2]
    (folder,) = (tmp_path / "runs").iterdir()
    assert lines[-1] == f"results in runs/{folder.name}"
    assert folder.name.startswith("ppo-gymnax-CartPole-v1-seed4-")
    summary = json.loads((folder / "summary.json").read_text())
    assert 0 < summary["startup_seconds"] < 120


def test_every_flag_reaches_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[tuple, dict]] = []
    monkeypatch.setattr(
        importlib.import_module("tessera.api"), "train", lambda *args, **options: calls.append((args, options))
    )
    flags = (
        "--policy single_learner_coarse --actors 3 --envs 12 --groups 6 --lag 2 --precision bf16 --steps 99 --seed 5"
    )
    flags += (
        " --seeds 4 --run-dir x --target-return 7.5 --resume --eval-episodes 8 --checkpoint-every 1.5 --keep 2 --quiet"
    )
    flags += " --engine serial --evaluate-every 5 --video-every 6 --trace t.json --timeout 9.5 --restarts 3"
    flags += " --population 5 --pbt gamma=0.9:1,clip=0.1:0.3 --pbt-every 7 --pbt-explore resample"
    flags += " --patience 3 --min-improvement 0.5 --init-from runs/x@best"
    flags += " --start-timeout 99 --no-checkpoint-replay --trust-network --replan"
    flags += " --address 10.0.0.1:6379 --mesh data=2,model=2 --preset breakout --allow async --opponent greedy"
    flags += " --gamma 0.9 --no-anneal --widths 8 4 --max-gradient-norm 0 --entropy-coefficient 0.5"
    main([*TRAIN, *flags.split()])
    ((algorithm, env, policy), options) = calls[0]
    assert algorithm == tessera.PPO(
        gamma=0.9, anneal=False, widths=(8, 4), max_gradient_norm=0.0, entropy_coefficient=0.5, learning_rate=5e-3,
        minibatches=8,
    )  # fmt: skip
    assert env == ENV
    assert options.pop("preset").name == "breakout"
    assert (policy.name, policy.fragments[0].replicas) == ("single_learner_coarse", 3)
    assert options.pop("started") > 0
    assert options == {
        "envs": 12,
        "groups": 6,
        "lag": 2,
        "allow": "async",
        "mesh": "data=2,model=2",
        "precision": "bf16",
        "steps": 99,
        "seed": 5,
        "seeds": 4,
        "population": tessera.Population(5, {"gamma": "0.9:1", "clip": "0.1:0.3"}, every=7, explore="resample"),
        "run_dir": Path("x"),
        "target_return": 7.5,
        "opponent": "greedy",
        "resume": True,
        "eval_episodes": 8,
        "checkpoint_every": 1.5,
        "keep": 2,
        "engine": "serial",
        "evaluate_every": 5,
        "video_every": 6,
        "patience": 3,
        "min_improvement": 0.5,
        "init_from": "runs/x@best",
        "trace": Path("t.json"),
        "timeout": 9.5,
        "start_timeout": 99.0,
        "restarts": 3,
        "checkpoint_replay": False,
        "trust_network": True,
        "replan": True,
        "address": "10.0.0.1:6379",
        "quiet": True,
        "system": "ppo",
    }


@pytest.mark.parametrize(
    ("text", "replicas"),
    [
        ("single_learner_coarse", [3, 1]),
        ("central:shards=2", [3, 2]),
        ("multi_learner", [3]),
        ("gorila:learners=2", [3, 1, 2, 2]),
        ("py:colours.mine:stores=2", [3, 2, 1]),
    ],
)
def test_actors_are_short_for_the_policys_own_word_for_them(text: str, replicas: list[int], tmp_path: Path) -> None:
    (tmp_path / "colours.py").write_text("from tessera.policies.distributed_replay import policy as mine\n")
    sys.path.insert(0, str(tmp_path))
    world = WorldOptions("x", policy=text, actors=3)
    assert [f.replicas for f in policy_of(world).fragments] == replicas


def plan(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    main(["plan", "ppo", ENV, *flags])
    return capsys.readouterr().out


def test_a_plan_prints_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    shown = plan(capsys, "--policy", "single_learner_coarse", "--actors", "3", "--envs", "12", "--engine", "serial")
    assert f"ppo on {ENV} under single_learner_coarse (serial engine)" in shown
    assert "env+act" in shown
    assert "store+grad+apply" in shown
    assert "experience" in shown
    assert "reason    named by the user" in shown


def test_a_plan_draws_as_mermaid(capsys: pytest.CaptureFixture[str]) -> None:
    shown = plan(capsys, "--policy", "single_learner_coarse", "--format", "mermaid")
    assert shown.startswith("flowchart LR\n")
    assert "act ==>|experience| store" in shown
    assert "store -->|samples| grad" in shown


def test_a_plan_saves_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(plan(capsys, "--policy", "fused", "--envs", "8", "--format", "json"))
    assert data["envs"] == 8
    assert data["fragments"][0]["operators"] == ["env", "act", "store", "grad", "apply"]
    assert data["channels"] == []


def test_a_plan_without_a_policy_says_in_one_line_why_it_chose(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for line in plan(capsys).splitlines() if line.startswith("reason")]
    assert len(lines) == 1
    assert "fused, because the environment is pure JAX" in lines[0]


def test_a_plan_takes_a_policy_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    colouring = {"fragments": [{"operators": "env act store grad", "replicas": 2}, {"operators": "apply"}]}
    (tmp_path / "mine.json").write_text(json.dumps(colouring))
    shown = plan(capsys, "--policy", "mine.json")
    assert f"ppo on {ENV} under mine (local engine)" in shown
    assert "env+act+store+grad × 2" in shown


def test_plan_leaves_nothing_on_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan(capsys)
    assert list(tmp_path.iterdir()) == []


def test_systems_algorithms_and_policies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["systems"])
    shown = capsys.readouterr().out.splitlines()
    for name, system in systems.SYSTEMS.items():
        lines = shown[shown.index(name) :][:4]
        assert system.paper in lines[1]
        assert system.policy in lines[2]
        assert lines[3] == f"    {systems.command(name)}"
        assert lines[3].startswith(f"    tessera train {name} ")
    main(["algorithms"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(algorithms.ALGORITHMS)
    main(["policies"])
    shown = capsys.readouterr().out.splitlines()
    assert set(policies.names()) <= set(shown)
    assert "    [env act store grad apply] × devices" in shown
    assert "    options: workers=2, shards=1, mode=sync, lag=none, push=1, pull=1, model=1" in shown
    for head in ("    options: ", "    mirrors: "):
        assert sum(line.startswith(head) for line in shown) == len(policies.names())


@pytest.mark.parametrize("name", systems.SYSTEMS)
def test_a_system_is_planned_by_its_name_with_its_settings_and_its_policy(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    system = systems.SYSTEMS[name]
    main([*systems.command(name).replace("tessera train", "plan").split(), "--envs", "16", "--format", "json"])
    plan = json.loads(capsys.readouterr().out)
    assert plan["algorithm"] == system.algorithm
    assert plan["policy"] == (policies.split(system.policy)[0] if system.policy else "fused")
    _, _, made = parse_arguments("plan", [name, systems.command(name).split()[-1]], PlanOptions)
    assert {key: getattr(made, key) for key in system.options} == dict(system.options)


def test_a_system_that_is_a_population_is_trained_as_one_and_flags_overrule_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    monkeypatch.setattr(
        importlib.import_module("tessera.api"), "train", lambda *_, population, **__: found.append(population)
    )
    main(["train", "pbt", ENV, "--run-dir", "x"])
    main(["train", "pbt", ENV, "--run-dir", "x", "--population", "3", "--pbt", "gamma=0.9:1", "--pbt-every", "0"])
    main(["train", "ppo_es", ENV, "--run-dir", "x", "--es-sigma", "0.5"])
    main(["train", "ppo", ENV, "--run-dir", "x"])
    assert found == [
        tessera.Population(**systems.SYSTEMS["pbt"].population),
        tessera.Population(3, {"gamma": "0.9:1"}, every=0),
        tessera.Population(8, sigma=0.5),
        None,
    ]
    with pytest.raises(SystemExit, match="2"):
        main(["compare", "pbt", ENV, "--policies", "fused"])


def test_flags_overrule_what_a_system_sets(capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", "a3c", ENV, "--policy", "hogwild", "--normalise-advantages", "--format", "json"])
    assert json.loads(capsys.readouterr().out)["policy"] == "hogwild"
    _, _, made = parse_arguments("plan", ["a3c", ENV, "--normalise-advantages"], PlanOptions)
    assert made.normalise_advantages


@pytest.mark.parametrize(("typed", "near"), [("trpo", "ppo"), ("IQN", "qr_dqn"), ("tqc", "sac")])
def test_a_name_that_others_have_is_answered_with_what_does_the_same_job(typed: str, near: str) -> None:
    with pytest.raises(tessera.TesseraError, match=f"there is no {typed} here; {near} does the same job"):
        systems.find(typed)
    assert set(systems.NEAREST.values()) <= set(systems.SYSTEMS)
    assert not set(systems.NEAREST) & (set(systems.SYSTEMS) | set(algorithms.ALGORITHMS))


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_help_documents_every_field(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["train", name, "--help-all"])
    assert left.value.code == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    cls = algorithms.get(name)
    assert systems.SYSTEMS[name].summary in shown
    for owner in (cls, WorldOptions, TrainOptions):
        docs = field_docs(owner)
        for field in options_of(owner):
            assert len(docs.get(field.name, "")) > 3, f"{owner.__name__}.{field.name} has no docstring"
            flag = "Environment:" if field.name == "env" else f"--{field.name.replace('_', '-')}"
            assert flag in shown
            assert docs[field.name].split()[0] in shown.partition(flag)[2] or field.name == "env"


def test_help_shows_the_flags_that_people_change_and_where_the_others_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["train", "dqn", ENV, "--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    flags = set(re.findall(r"^\W*?(--[a-z][a-z-]+)", shown, re.MULTILINE))
    assert flags == {f"--{name.replace('_', '-')}" for name in COMMON if name != "env"}
    assert len(flags) == 11
    assert re.search(r"\d\d more flags: tessera train dqn --help-all", shown)


@pytest.mark.parametrize("options", [PlanOptions, PairsOptions, CompareOptions, EvalOptions])
def test_every_option_of_a_command_is_documented(options: type) -> None:
    assert all(field_docs(options)[f.name] for f in dataclasses.fields(options))


@pytest.mark.parametrize("arguments", [[], ["--help"], ["train", "--help"], ["plan", "-h"], ["doctor", "--help"]])
def test_help_is_on_stdout(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code = 0
    try:
        main(arguments)
    except SystemExit as left:
        code = left.code
    assert code == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("usage: tessera")
    assert shown.err == ""


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--version"])
    assert capsys.readouterr().out == f"{tessera.__version__}\n"


def test_importing_the_package_or_asking_for_usage_does_not_import_jax() -> None:
    code = "import sys, tessera; from tessera.cli.main import main; main(['--help']); assert 'jax' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("first", ["tessera.Result", "import tessera.api, tessera.cli.train"])
def test_train_is_the_function_whatever_was_imported_first(first: str) -> None:
    code = f"import tessera; {first}; assert callable(tessera.train)"
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
