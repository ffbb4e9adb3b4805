"""One task under several policies: how they are named, run and shown."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tessera import A2C, TesseraError
from tessera.api import compare
from tessera.cli.compare import split_policies, table
from tessera.cli.main import main
from tessera.errors import RunFailed

ENV = "gymnax:CartPole-v1"
SMALL: dict[str, Any] = {"steps": 512, "envs": 8, "eval_episodes": 2, "engine": "serial"}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("fused", ["fused"]),
        ("fused,hogwild", ["fused", "hogwild"]),
        (
            "fused,central:workers=2,mode=async,hogwild",
            ["fused", "central:workers=2,mode=async", "hogwild"],
        ),
        ("central:workers=2, shards=2 ,central:mode=async", ["central:workers=2,shards=2", "central:mode=async"]),
        ("my/file.toml,py:a.b,workers=3,fused,", ["my/file.toml", "py:a.b:workers=3", "fused"]),
    ],
)
def test_commas_separate_policies_and_their_options(text, names):
    assert split_policies(text) == names


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names none"),
        ("workers=2,fused", "begins with the option 'workers=2'"),
        ("fused,hogwild,fused", "names one policy twice"),
    ],
)
def test_a_list_that_makes_no_sense_says_why(text, why):
    with pytest.raises(TesseraError, match=why):
        split_policies(text)


def test_policies_run_one_after_the_other_on_the_same_task(tmp_path):
    said: list[str] = []
    names = ["fused:devices=1", "averaging:workers=2"]
    found = compare(A2C(widths=(8,)), ENV, names, run_dir=tmp_path, note=said.append, **SMALL)
    assert said == ["fused:devices=1 (1 of 2)", "averaging:workers=2 (2 of 2)"]
    assert [s["policy"] for s in found.values()] == ["fused", "averaging"]
    assert all(s["env_steps"] == 512 for s in found.values())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["averaging-workers=2", "fused-devices=1"]
    lines = table(found).splitlines()
    assert lines[0].split()[:2] == ["policy", "steps/s"]
    assert [line.split()[0] for line in lines[1:]] == names
    assert len({len(line) for line in lines}) == 1


def test_nothing_runs_if_one_of_them_cannot(tmp_path):
    with pytest.raises(TesseraError, match="multi_learner:learners=9: 8 environments cannot be dealt into 9"):
        compare(A2C(), ENV, ["fused", "multi_learner:learners=9"], run_dir=tmp_path, **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_is_reported_and_the_others_go_on(monkeypatch, capsys):
    folders: list[Any] = []

    def train(algorithm: Any, env: Any, policy: Any, **options: Any) -> Any:
        folders.append(options["run_dir"])
        if policy.name == "hogwild":
            raise RunFailed("a worker was killed too often")
        return SimpleNamespace(summary={"steps_per_second": 1234.5, "seconds_to_target": None, "lag_mean": 0.25})

    monkeypatch.setattr("tessera.api.train", train)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as left:
        main(["compare", "a2c", ENV, "--policies", "hogwild,central:workers=2,mode=async", "--quiet"])
    assert left.value.code == 1
    shown = capsys.readouterr()
    rows = [line.split() for line in shown.out.splitlines()]
    assert rows[1] == ["hogwild", *"-------"]
    assert rows[2] == ["central:workers=2,mode=async", "1,234", "-", "-", "0.25", "-", "-", "-"]
    assert "hogwild: a worker was killed too often" in shown.out
    assert shown.err == "tessera: hogwild failed\n"
    assert [folder.name for folder in folders] == ["hogwild", "central-workers=2-mode=async"]
    assert folders[0].parent.name.startswith("compare-a2c-gymnax-CartPole-v1-seed0-")
