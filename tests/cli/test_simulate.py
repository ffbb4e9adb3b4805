"""`tessera simulate`: what it prints, what it writes, what it refuses."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tessera.cli.main import main

COSTS = {
    "ops": {"grad batch+summary -> gradients": [[8, 3.0]], "apply gradients+squares -> state": [[8, 1.0]]},
    "timings": {"env actions -> timesteps": [{"envs": 2, "threads": 1, "calls": [[0.1, 0.1], [0.3, 0.3]]}]},
    "remote_links": {"latency": 0.001},
}
CLUSTER = """
[nodes.actor]
count = 4
cores = 1
memory_gb = 1
bandwidth_gbit_s = 1
price_per_hour = 9

[nodes.learner]
count = 1
cores = 1
price_per_hour = 9
"""
COMMAND = ["simulate", "a2c", "CartPole-v1", "--policy", "single_learner_coarse:actors=4", "--envs", "8"]
COMMAND += ["--unroll", "4", "--lag", "0", "--costs", "costs.json"]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs and a cluster, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    Path("costs.json").write_text(json.dumps(COSTS))
    Path("cluster.toml").write_text(CLUSTER)


def test_a_plan_on_a_cluster_is_predicted_with_an_interval_a_price_and_a_timeline(capsys):
    main([*COMMAND, "--cluster", "cluster.toml", "--updates", "5", "--trace", "sim.json"])
    shown = capsys.readouterr().out
    for words in (
        "steps/s   ",
        "5 draws; 5 of 5 replicas",
        "limit     store+grad+apply",
        "lag       experience: mean 0",
    ):
        assert words in shown
    assert "for a million steps (45.00 an hour)" in shown
    events = json.loads(Path("sim.json").read_text())["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} >= {"env+act/0", "store+grad+apply/0"}
    assert {e["name"] for e in events if e["ph"] == "X"} >= {"stepping", "learning", "waiting"}
    assert sorted(p.name for p in Path().iterdir()) == ["cluster.toml", "costs.json", "sim.json"]


def test_json_has_the_numbers(capsys):
    main([*COMMAND, "--cluster", "cluster.toml", "--updates", "5", "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    low, high = found["interval"]
    assert low < found["steps_per_second"] < high
    # 4 steps of 0.2 on average, of which the slowest of four actors is waited for, and 4 to learn
    assert 8 * 4 / (4 + 4 * 0.3) < found["steps_per_second"] < 8 * 4 / (4 + 4 * 0.2)
    assert found["price_per_million_steps"] == pytest.approx(45 / 3600 * 1e6 / found["steps_per_second"])
    assert sum(node["alike"] for node in found["nodes"]) == 5


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--cluster", "no.toml"], "cluster file no.toml does not exist"),
        (["--costs", "no.json"], "costs file no.json does not exist"),
        (["--cluster", "cluster.toml", "--updates", "0"], "--updates 0: at least one update is needed"),
        (["--trace", "no/sim.json"], "--trace no/sim.json: name a file in a folder that exists"),
        (["--format", "xml"], "--format xml: table or json"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(arguments, sentence, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*COMMAND, *arguments])
    assert stop.value.code == 2
    told = capsys.readouterr()
    assert told.err == f"tessera: {sentence}\n"
    assert sorted(p.name for p in Path().iterdir()) == ["cluster.toml", "costs.json"]


def test_a_cluster_without_room_or_memory_says_asked_and_available(capsys):
    Path("cluster.toml").write_text("[nodes.actor]\ncount = 2\ncores = 2\n")
    with pytest.raises(SystemExit):
        main([*COMMAND, "--cluster", "cluster.toml"])
    asked = "Asked: 4 × env+act with 1 CPU each, 1 × store+grad+apply with 1 CPU each"
    assert f"{asked}. Available: 2 × actor with 2 CPU." in capsys.readouterr().err
    Path("cluster.toml").write_text("[nodes.actor]\ncount = 5\ncores = 1\nmemory_gb = 1e-6\n")
    with pytest.raises(SystemExit):
        main([*COMMAND, "--cluster", "cluster.toml"])
    assert re.search(r"too little memory for 1 × env\+act: asked .* kB, available 1 kB", capsys.readouterr().err)
