"""Pages of systems: every system has one, what was measured is data, and the museum is in order of years."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from tessera import policies
from tessera.systems import SYSTEMS

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import systems as benchmark
import totals
from _ext import systems as pages

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "systems"
SECTIONS = ["In the paper", "Here", "Plan", "Measured", "Exercise"]
MEASURED = pages.measured()


def page(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text()


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_has_a_page_with_the_same_sections(name):
    text = page(name)
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    assert f"```{{system-facts}} {name}\n" in text
    assert (f"```{{system-measured}} {name}\n" in text) == (name in MEASURED)


def test_no_page_is_of_a_system_that_is_gone():
    assert {path.stem for path in FOLDER.glob("*.md")} == {*SYSTEMS, "README"}


@pytest.mark.parametrize("name", MEASURED)
def test_what_was_measured_is_shown_row_by_row_with_its_command_and_curves(name):
    found, text = MEASURED[name], pages.system_measured(name)
    seeds = [row["seed"] for row in found["rows"]]
    assert len(set(seeds)) == len(seeds) > 0
    assert re.findall(r"^\| (\d+) \|", text, re.MULTILINE) == [str(seed) for seed in seeds]
    assert text.count(f"tessera train {name} ") == len(seeds)
    assert (FOLDER / f"{name}.png").exists()
    solved = [row for row in found["rows"] if row["seconds"] is not None]
    assert all(row["greedy_return"] >= found["task"]["target"] for row in solved)


def test_a_command_of_a_run_has_all_that_it_was_run_with():
    found = {
        "task": {"env": "E", "steps": 10, "target": -2.0, "opponent": "greedy", "evaluate_every": 5},
        "flags": "-x 1",
    }
    expected = "tessera train sac E -x 1 --steps 10 --target-return -2 --opponent greedy --evaluate-every 5 --seed 3"
    assert pages.run_of("sac", found, 3) == expected


def test_the_museum_has_every_system_once_in_order_of_years():
    shown = [re.findall(r"\[`(\w+)`\]\(\w+\.md\) =", pages.systems_museum(hall)) for hall in pages.HALLS]
    assert sorted(shown[0] + shown[1]) == sorted(SYSTEMS)
    for names in shown:
        years = [pages.year(name) for name in names]
        assert years == sorted(years)
    assert shown[0][0] == "downpour"
    assert re.findall(r"^\| \d+ \| \[`(\w+)`\]", pages.systems_table(), re.MULTILINE) == pages.in_order()


def test_a_system_without_a_page_or_a_measurement_is_named():
    with pytest.raises(ValueError, match="no runs of 'r2d2'"):
        pages.system_measured("r2d2" if "r2d2" not in MEASURED else "nobody")
    with pytest.raises(ValueError, match="is no part of the museum"):
        pages.systems_museum("garden")


@pytest.mark.parametrize("name", SYSTEMS)
def test_commands_of_an_exercise_name_systems_and_policies_that_exist(name):
    exercise = page(name).partition("## Exercise")[2]
    blocks = re.findall(r"```sh\n(.*?)```", exercise, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    trained = [shlex.split(line) for line in lines if line.startswith(("tessera train ", "tessera compare "))]
    assert trained
    for words in trained:
        assert words[2] in SYSTEMS
        if "--policy" in words:
            policies.parse(words[words.index("--policy") + 1])


def test_measurements_are_written_as_they_were_read(tmp_path):
    benchmark.write(MEASURED, tmp_path / "measured.json")
    assert (tmp_path / "measured.json").read_text() == benchmark.MEASURED.read_text()


def test_seconds_are_those_until_the_target_and_none_where_it_was_not_reached():
    summary = {"steps_per_second": 9.0, "env_steps": 5, "eval_return_mean": 1.0, "wall_seconds": 8.0}
    task = benchmark.Task(target=1.0)
    solved = benchmark.row_of(task, 1, {**summary, "solved": True, "seconds_to_target": 7.0}, 2.0)
    assert solved.seconds == 5.0
    assert benchmark.row_of(task, 1, {**summary, "solved": False, "seconds_to_target": None}, 2.0).seconds is None
    endless = benchmark.Task(target=None)
    assert benchmark.row_of(endless, 1, {**summary, "solved": True, "seconds_to_target": None}, 2.0).seconds is None


def test_totals_of_a_run_add_up_its_rows(tmp_path):
    rows = [
        {"lag/mean": None, "stream/params/bytes": 10, "stream/params/messages": 1},
        {"lag/mean": 2.0, "lag/max": 3.0, "stream/params/bytes": 30, "stream/params/messages": 2},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = {"env_steps": 20, "updates": 2, "train_return_mean": 1.0, "eval_return_mean": 4.0}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    head, params = totals.lines(tmp_path)
    assert "20 steps, 2 updates, lag 2.00 (at most 3), training return 1.0, greedy 4.0" in head
    assert params == "  params: 3 messages, 2 bytes a step, 0 dropped"
