"""What the dashboard says of run folders, also of those that want to harm it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from recorded_runs import (
    ACTORS,
    CONFIG,
    LEARNER,
    descent_rows,
    row,
    status,
    write_lineage,
    write_population,
    write_run,
)

from tessera.dash.answers import Answers
from tessera.dash.tree import RequestRefused
from tessera.dash.values import to_json
from tessera.dash.watching import RunWatch
from tessera.runs.joined_curves import Line, joined


def test_runs_are_found_at_any_depth(runs, answers):
    for name in ("a", "group/b", "seeds/seed-1", "seeds"):
        write_run(runs / name) if not (runs / name).exists() else write_run(runs / name / "x")
    (runs / "empty").mkdir()
    found = answers.runs()
    assert [run["name"] for run in found["runs"]] == ["a", "group/b", "seeds/seed-1", "seeds/x"]
    assert found["left_out"] == 0


def test_a_run_may_be_called_as_a_folder_of_runs_is(runs, answers):
    for name in ("best", "live", "group/logs", "group/logs/best"):
        write_run(runs / name)
    assert [run["name"] for run in answers.runs()["runs"]] == ["best", "group/logs", "live"]


def test_a_run_itself_can_be_served(runs):
    write_run(runs / "a")
    alone = Answers(runs / "a")
    assert [run["name"] for run in alone.runs()["runs"]] == ["."]
    assert alone.run(".")["header"]["update"] == 10


def test_the_overview_tells_how_far_runs_have_come(runs, answers):
    write_run(runs / "a", status=status())
    (run,) = answers.runs()["runs"]
    assert run["algorithm"] == "impala"
    assert run["state"] == "running"
    assert (run["update"], run["updates"], run["env_steps"]) == (10, 100, 1280)
    assert run["return_mean"] == 10.0
    assert run["time_left"] == pytest.approx(90 * 128 / 256)


def test_the_learner_that_waits_is_named_with_what_it_waits_for(runs, answers):
    write_run(runs / "a", status=status())
    found = answers.run("a")
    assert found["verdict"] == "The learner waits 62 % of the time for experience."
    assert any("More actors" in hint for hint in found["hints"])
    assert any("4 messages of experience were dropped" in hint for hint in found["hints"])


def test_actors_that_wait_for_a_busy_learner_are_named(runs, answers):
    waited = {"waited": {ACTORS: 0.8, LEARNER: 0.05}, "waited_for": {ACTORS: {"params": 0.8}}}
    write_run(runs / "a", status=status(**waited))
    found = answers.run("a")
    assert found["verdict"] == "The actors wait 80 % of the time for params, so the learner sets the pace."
    assert any("would bring little" in hint for hint in found["hints"])


def test_without_a_status_the_verdict_is_read_from_metrics(runs, answers):
    folder = write_run(runs / "a")
    lines = [row(k, **{"stream/experience/wait_seconds": 0.25, "stream/params/wait_seconds": 0.1}) for k in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert answers.run("a")["verdict"] == (
        "Replicas wait 0.50 s for experience in each second of training, all together."
    )


def test_of_one_program_nobody_waits(runs, answers):
    write_run(runs / "a", status=status(waited={}, waited_for={}))
    assert answers.run("a")["verdict"] == "Everything runs as one program: nobody waits for anybody."


def test_what_is_kept_of_small_files_stays_small(runs, answers, monkeypatch):
    monkeypatch.setattr("tessera.dash.facts.KEPT_BYTES", 1000)
    for number in range(20):
        write_run(runs / f"{number}", config={"note": "x" * 200})
    assert len(answers.runs()["runs"]) == 20
    assert len(answers._reader._kept) < 5


def test_a_run_whose_process_is_gone_is_stopped(runs, answers, monkeypatch):
    monkeypatch.setattr("tessera.dash.status.SILENCE", 0.1)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    said = time.time() - 0.2
    write_run(runs / "gone", status=status(pid=gone.pid, time=said))
    write_run(runs / "silent", status=status(time=said))
    write_run(runs / "elsewhere", status=status(time=said, host="another machine"))
    states = {run["name"]: (run["state"], run["why"]) for run in answers.runs()["runs"]}
    assert states["silent"] == ("running", "")  # its process lives
    assert states["gone"][0] == states["elsewhere"][0] == "stopped"
    assert states["gone"][1].startswith("no sign of life since 20")


def test_a_process_that_got_the_number_of_another_is_not_taken_for_it(runs, answers):
    write_run(runs / "a", status=status(time=1000.0))  # this process began later
    assert answers.runs()["runs"][0]["state"] == "stopped"


def test_a_finished_run_has_an_interval_of_its_evaluation(runs, answers):
    folder = write_run(runs / "a")
    summary = {"eval_return_mean": 100.0, "eval_return_std": 20.0, "eval_episodes": 100, "updates": 10}
    (folder / "summary.json").write_text(json.dumps(summary))
    header = answers.run("a")["header"]
    assert header["state"] == "finished"
    assert header["eval_interval"] == pytest.approx([96.08, 103.92])


def test_a_run_that_is_expected_may_come_later(runs):
    answers = Answers(runs, expected="later")
    assert answers.run("later")["header"]["state"] == "starting"
    assert answers.run("later")["header"]["why"] == "the run has not written anything yet"
    write_run(runs / "later")
    assert answers.run("later")["header"]["update"] == 10
    with pytest.raises(RequestRefused):
        answers.run("another")


def test_curves_are_thinned_with_their_lowest_and_highest_values(runs, answers):
    write_run(runs / "a", rows=3000)
    found = answers.curves(["a"], ["train_return_mean", "none"], "update", 50, False)
    thinned, nothing = found["curves"]
    assert found["by"] == "update"
    assert 40 <= len(thinned["x"]) <= 50
    assert min(thinned["low"]) == 1
    assert max(thinned["high"]) == 3000
    assert nothing["x"] == []
    whole = answers.curves(["a"], ["train_return_mean"], "seconds", 4000, False)["curves"][0]
    assert len(whole["x"]) == 3000
    assert "low" not in whole


def test_runs_that_differ_in_their_seed_are_joined(runs, answers):
    for seed in range(4):
        write_run(runs / f"run-{seed}", config={"seed": seed})
    write_run(runs / "other", config={"seed": 9, "steps": 1})
    names = [f"run-{seed}" for seed in range(4)]
    curves = answers.curves([*names, "other"], ["train_return_mean"], "env_steps", 100, True)["curves"]
    assert [(curve["run"], curve["runs"]) for curve in curves] == [("run-0", 4), ("other", 1)]
    apart = answers.curves(names, ["train_return_mean"], "env_steps", 100, False)["curves"]
    assert [curve["runs"] for curve in apart] == [1, 1, 1, 1]


def test_a_folder_of_seeds_is_drawn_from_its_runs(runs, answers):
    write_run(runs / "all", rows=0, config={"seeds": 2})
    for seed in range(2):
        write_run(runs / "all" / f"seed-{seed}", config={"seed": seed})
    (curve,) = answers.curves(["all"], ["train_return_mean"], "env_steps", 100, False)["curves"]
    assert (curve["run"], curve["runs"], curve["y"][-1]) == ("all", 2, 10.0)
    found = answers.run("all")
    assert found["header"]["return_mean"] == 10.0
    assert found["header"]["steps_per_second"] == 512.0
    assert found["verdict"].startswith("Several seeds together")
    assert found["header"]["state"] == "running"
    assert "learn/loss" in found["metrics"]
    members = found["population"]["members"]
    assert [(m["name"], m["seed"], m["return_mean"]) for m in members] == [("all/seed-0", 0, 10), ("all/seed-1", 1, 10)]


def test_the_header_of_finished_seeds_has_interquartile_means(runs, answers):
    folder = write_run(runs / "all", rows=0, config={"seeds": 4})
    means = {"train_return_mean": 1.0, "train_return_iqm": 5.0}
    (folder / "metrics.jsonl").write_text(json.dumps({**row(3), **means}) + "\n")
    figures = {"eval_return_mean": 2.0, "eval_return_iqm": 6.0, "eval_return_iqm_low": 4.0, "eval_return_iqm_high": 7.0}
    (folder / "summary.json").write_text(json.dumps(figures))
    header = answers.news("all")["header"]
    assert (header["return_mean"], header["eval_return_mean"], header["eval_interval"]) == (5.0, 6.0, [4.0, 7.0])


def test_members_of_a_population_have_their_origin_and_their_newest_values(runs, answers):
    write_population(runs / "pop")
    found = answers.run("pop")["population"]
    assert found["kind"] == "population"
    assert [(m["seed"], m["copied_from"], m["tuned"]) for m in found["members"]] == [
        (0, 2, {"learning_rate": 0.09, "clip": 0.2}),
        (1, None, {"learning_rate": 0.02, "clip": 0.2}),
        (2, 0, {"learning_rate": 0.07, "clip": 0.2}),
    ]
    lineage = found["lineage"]
    assert (lineage["seeds"], lineage["tuned"], lineage["best"]) == ([0, 1, 2], ["learning_rate", "clip"], 0)
    lives = [(x["seed"], x["begin"], x["end"], x["parent"], x["is_replaced"]) for x in lineage["lives"]]
    assert lives == [(0, 0, 8, None, True), (1, 0, 10, None, False), (2, 0, 4, None, True), (2, 4, 10, 0, False),
                     (0, 8, 10, 3, False)]  # fmt: skip
    newest = lineage["lives"][-1]
    assert [newest[key] for key in ("score", "score_before", "score_of_parent")] == [20.0, 10.0, 14.0]
    assert newest["tuned"] == [0.09, 0.2]
    assert lineage["descent"] == [0, 3, 4]
    (runs / "pop" / "summary.json").write_text(json.dumps({"eval_returns": {"0": 1.0, "1": None, "2": 5.0, "x": 9.0}}))
    finished = answers.run("pop")["population"]["lineage"]
    assert (finished["best"], finished["descent"]) == (2, [0, 3])
    write_run(runs / "seeds", config={"seeds": 1})
    write_run(runs / "seeds" / "seed-0")
    assert answers.run("seeds")["population"]["lineage"] is None


def test_a_lineage_that_is_torn_or_damaged_is_shown_as_far_as_it_can_be_read(runs, answers):
    folder = write_population(runs / "pop")
    text = (folder / "lineage.jsonl").read_text()
    lines = text.splitlines()
    lines[5] = '{"update": 4, "seed": 2'
    (folder / "lineage.jsonl").write_text("\n".join(lines)[:-20])
    lineage = answers.run("pop")["population"]["lineage"]
    assert (lineage["damaged"], len(lineage["lives"])) == (2, 4)
    (folder / "lineage.jsonl").write_text("[]\n")
    found = answers.run("pop")["population"]
    assert (found["lineage"]["damaged"], found["lineage"]["lives"], found["members"][0]["copied_from"]) == (1, [], None)
    (folder / "lineage.jsonl").unlink()
    assert answers.run("pop")["population"]["lineage"] is None


def test_rows_of_a_lineage_may_hold_anything(runs, answers):
    values = [None, True, -1, 2**60, 1e300, "<b>", [], {}, {"learning_rate": "x", "<b>": 1.0}]
    base = {"update": 4, "seed": 1, "parent": 0, "score": 1.0, "tuned": {}}
    nasty = [{**base, key: value} for key in base for value in values]
    nasty += [{"update": 4, "seed": k, "tuned": {str(j): j for j in range(100)}} for k in range(1000)]
    folder = write_population(runs / "pop", [*descent_rows(), *nasty, *reversed(nasty)])
    config = json.loads((folder / "seed-1" / "config.json").read_text())
    (folder / "seed-1" / "config.json").write_text(json.dumps({**config, "seed": [1]}))
    found = answers.run("pop")["population"]
    assert len(to_json(found)) < 500_000
    assert (len(found["lineage"]["seeds"]), found["lineage"]["left_out"] > 700) == (256, True)
    for data in (b"\xff\xfe\x00\n", b"[" * 100_000 + b"\n", b'{"update": ' + b"9" * 5000 + b"}\n"):
        (folder / "lineage.jsonl").write_bytes(data)
        assert answers.run("pop")["population"]["lineage"]["damaged"] == 1
    (folder / "lineage.jsonl").unlink()
    os.mkfifo(folder / "lineage.jsonl")
    assert answers.run("pop")["population"]["lineage"] is None


def test_of_a_huge_lineage_the_newest_exchanges_are_read(runs, answers, monkeypatch):
    members, exchanges = 64, 1000
    rows = [
        {"update": 10 * e, "seed": k, "parent": (k + e) % members if e and (k + e) % 5 == 0 else k, "score": 1.0 * k,
         "tuned": {"learning_rate": 0.001}}
        for e in range(exchanges + 1) for k in range(members)
    ]  # fmt: skip
    write_population(runs / "pop", rows)
    began = time.process_time()
    lineage = answers.run("pop")["population"]["lineage"]
    assert time.process_time() - began < 2.0
    assert lineage["is_cut"]
    assert lineage["seeds"] == list(range(members))
    assert max(life["begin"] for life in lineage["lives"]) == 10 * exchanges
    assert 1000 < len(lineage["lives"]) <= 1500 + members
    monkeypatch.setattr("tessera.dash.lineage.read_lineage", lambda *_: pytest.fail("it was read again"))
    assert answers.run("pop")["population"]["lineage"] == lineage


def test_an_exchange_and_the_end_are_told_to_the_page(runs, answers):
    folder = write_population(runs / "pop", descent_rows()[:6])
    watch = RunWatch(answers, "pop", [])
    assert [news.event for news in watch.poll()] == ["run"]
    write_lineage(folder, descent_rows())
    ((event, population),) = [news for news in watch.poll() if news.event != "run"]
    assert (event, population["members"][0]["copied_from"]) == ("population", 2)
    (folder / "summary.json").write_text(json.dumps({"eval_returns": {"2": 5.0}}))
    assert [news.data["lineage"]["best"] for news in watch.poll() if news.event == "population"] == [2]
    assert watch.poll() == []


def test_the_interquartile_mean_has_a_band_and_ends_where_half_of_the_runs_do():
    def straight(value: float, last: float) -> Line:
        x = np.linspace(0, last, 50)
        return Line(x, *(np.full(50, value),) * 3)

    found = joined([straight(y, last) for y, last in ((0, 10), (1, 10), (2, 10), (100, 4))], 200)
    assert found.x[-1] == 10
    assert found.y[0] == 1.5  # without the lowest and the highest
    assert found.y[-1] == 1.0
    assert found.low[0] < 1.5 < found.high[0]
    assert joined([straight(1, 10), straight(1, 2), straight(1, 3)], 200).x[-1] == 3


def test_configurations_are_compared_as_text(runs, answers):
    write_run(runs / "a")
    write_run(runs / "b", config={"seed": 1, "algorithm": {**CONFIG["algorithm"], "learning_rate": 1e-4}})
    found = answers.compare(["a", "b"])
    assert found["differs"] == ["algorithm.learning_rate", "seed"]
    assert found["rows"]["algorithm.learning_rate"] == ["0.003", "0.0001"]


@pytest.mark.parametrize("name", ["..", "../runs/a", "a/../../x", "/etc", "a//b", "", "a/.", "a\0b", "\ud800", "a\nb"])
def test_names_that_lead_elsewhere_are_refused(runs, answers, name):
    write_run(runs / "a")
    for ask in (answers.run, answers.spans, answers.trace, lambda n: answers.compare([n])):
        with pytest.raises(RequestRefused) as refused:
            ask(name)
        assert refused.value.status == 404
    with pytest.raises(RequestRefused):
        answers.curves([name], ["x"], "update", 10, False)


def test_links_are_not_followed(runs, answers):
    outside = write_run(runs.parent / "outside")
    folder = write_run(runs / "a")
    os.symlink(outside, runs / "linked")
    (folder / "summary.json").symlink_to(runs.parent / "secret.json")
    (folder / "trace.json").symlink_to(runs.parent / "secret.json")
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").symlink_to(outside / "metrics.jsonl")
    (folder / "live").rmdir()
    (folder / "live").symlink_to(runs.parent)
    (folder / "plan.json").write_text("{}")
    assert [run["name"] for run in answers.runs()["runs"]] == ["a"]
    with pytest.raises(RequestRefused):
        answers.run("linked")
    found = answers.run("a")
    assert found["header"]["update"] == 0
    assert not found["has_trace"]
    assert "secret" not in to_json(found)
    assert answers.curves(["a"], ["train_return_mean"], "update", 10, False)["curves"][0]["x"] == []


def test_a_pipe_in_the_place_of_a_file_is_passed_over(runs, answers):
    folder = write_run(runs / "a")
    (folder / "metrics.jsonl").unlink()
    os.mkfifo(folder / "metrics.jsonl")
    os.mkfifo(folder / "live" / "status.json")
    assert answers.run("a")["status"] is None


def test_a_socket_in_the_place_of_a_file_is_passed_over(runs, answers, monkeypatch):
    for name in ("a", "b"):
        write_run(runs / name)
    (runs / "a" / "config.json").unlink()
    monkeypatch.chdir(runs / "a")  # the path of a socket has to be short
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind("config.json")
        assert [run["algorithm"] for run in answers.runs()["runs"]] == ["", "impala"]


def test_a_file_that_is_far_too_large_is_not_read(runs, answers, monkeypatch):
    folder = write_run(runs / "a")
    os.truncate(folder / "config.json", 1 << 40)
    monkeypatch.setattr("tessera.dash.tree.os.fdopen", lambda *_: pytest.fail("it was read"))
    assert answers.tree.read("a", "config.json") is None


NASTY = {
    "deep": "[" * 100_000,
    "deep but whole": "[" * 500 + "]" * 500,
    "number": "17",
    "text": "not json at all",
    "nothing": "",
    "binary": "\udcff\udcfe\x00",
    "huge numbers": '{"time": 1e999, "updates": 1' + "0" * 400 + ', "seconds": -Infinity, "env_steps": NaN}',
    "too many digits": '{"update": ' + "9" * 5000 + "}",
    "wrong types": json.dumps({key: [{"a": "b"}] for key in status()}),
    "other wrong types": json.dumps({key: {"a": ["b", None, True, {}]} for key in status()}),
    "numbers for all": json.dumps(dict.fromkeys(status(), 3)),
}


@pytest.mark.parametrize("text", NASTY.values(), ids=NASTY)
def test_files_that_hold_anything_are_shown_as_they_are_or_not_at_all(runs, answers, text):
    data = text.encode("utf-8", "surrogateescape")
    folder = write_run(runs / "a")
    for name in ("config.json", "plan.json", "summary.json", "metrics.jsonl", "live/status.json", "live/spans.json"):
        (folder / name).write_bytes(data + b"\n")
    (folder / "live" / "marks.jsonl").write_bytes(data + b"\n")
    to_json(answers.runs())
    to_json(answers.run("a"))
    to_json(answers.spans("a"))
    to_json(answers.compare(["a"]))
    to_json(answers.curves(["a"], ["update", "time", "seconds"], "env_steps", 100, True))


def test_values_of_nasty_rows_become_null_and_text_stays_text(runs, answers):
    folder = write_run(runs / "a", config={"env": "<script>alert(1)</script>"})
    nasty = '{"update": 5, "env_steps": 640, "train_return_mean": NaN, "learn/loss": Infinity, "x": "<b>"}\n'
    (folder / "metrics.jsonl").write_text(nasty)
    found = answers.run("a")
    assert found["header"]["return_mean"] is None
    assert found["header"]["env"] == "<script>alert(1)</script>"
    assert found["config"]["env"] == "<script>alert(1)</script>"
    assert "x" not in found["metrics"]


def test_names_with_markup_are_names(runs, answers):
    write_run(runs / "<img src=x onerror=alert(1)>")
    (name,) = [run["name"] for run in answers.runs()["runs"]]
    assert answers.run(name)["header"]["update"] == 10


def test_names_that_are_no_text_are_counted(runs, answers):
    write_run(runs / os.fsdecode(b"bad\xff"))
    write_run(runs / "new\nline")
    assert answers.runs() == {"folder": str(runs), "runs": [], "left_out": 2}


def test_the_search_for_runs_ends(runs, answers, monkeypatch):
    monkeypatch.setattr("tessera.dash.tree.MOST_RUNS", 3)
    for name in "abcde":
        write_run(runs / name)
    write_run(runs / "1/2/3/4/5/6/7/8")
    found = answers.runs()
    assert (len(found["runs"]), found["left_out"]) == (3, 2)


def test_spans_and_marks_keep_their_shape(runs, answers):
    spans = {
        "format": 1,
        "begin": 10.0,
        "end": 20.0,
        "names": ["learning", 3],
        "slots": [""],
        "replicas": [{"place": 0, "title": "a", "spans": [[0, 0, 1.0, 0.5, "main"], "x", [0, 0, None, 1, 2], [1]]}, 7],
    }
    folder = write_run(runs / "a", spans=spans)
    marks = [{"time": 1.0, "update": 3, "kind": "death", "place": 1, "text": "killed", "more": 1}]
    (folder / "live" / "marks.jsonl").write_text(json.dumps(marks[0]) + '\n{"time"')
    found = answers.spans("a")
    assert found["replicas"][0]["spans"] == [[0, 0, 1.0, 0.5, "main"]]
    assert found["names"] == ["learning", ""]
    expected = {"time": 1.0, "seconds": None, "update": 3.0, "env_steps": None, "kind": "death", "place": 1.0}
    assert answers.run("a")["marks"] == [{**expected, "text": "killed"}]


def test_videos_are_listed_once_they_are_whole(runs, answers):
    folder = write_run(runs / "a") / "videos"
    folder.mkdir()
    for name in ("update_000020.mp4", "update_000003.gif", ".update_000030.mp4", "notes.html"):
        (folder / name).write_bytes(b"12345")
    assert answers.run("a")["videos"] == [
        {"file": "update_000003.gif", "update": 3, "bytes": 5},
        {"file": "update_000020.mp4", "update": 20, "bytes": 5},
    ]
