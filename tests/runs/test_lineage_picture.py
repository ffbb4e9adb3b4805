"""The picture of a lineage: which lives it has, what the best member comes from, what is drawn and what is refused."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from tessera.cli.main import main
from tessera.errors import TesseraError
from tessera.runs.curves import Look
from tessera.runs.lineage_picture import CopyLine, LifeLine, descent_path, descent_returns, lineage_picture
from tessera.runs.lives import LineageRow, best_member, line_of_descent, lives_of

CONFIG = {"algorithm": {"name": "ppo"}, "env": "gymnax:CartPole-v1", "policy": "fused", "precision": "f32", "seed": 0}
DESCRIBED = {"tune": {"learning_rate": "log:1e-05:0.1", "clip": "0.1:0.3"}, "every": 10}
ROWS = [  # update, seed, parent, score, learning rate, clip
    (0, 0, None, None, 0.001, 0.1),
    (0, 1, None, None, 0.01, 0.2),
    (0, 2, None, None, 0.1, 0.3),
    (10, 0, 0, 11.0, 0.001, 0.1),
    (10, 1, 1, 8.0, 0.01, 0.2),
    (10, 2, 0, 3.0, 0.0012, 0.12),
    (20, 0, 2, 15.0, 0.00144, 0.1),
    (20, 1, 1, 16.0, 0.01, 0.2),
    (20, 2, 2, 22.0, 0.0012, 0.12),
    (30, 0, 0, 33.0, 0.00144, 0.1),
    (30, 1, 0, 20.0, 0.0018, 0.11),
    (30, 2, 2, 30.0, 0.0012, 0.12),
]
"""Seed 2 copies 0, then 0 copies 2, then 1 copies 0: seed 1 has the state that 0, then 2, then 0 had."""


def write(folder, rows=ROWS, returns=((11, 15, 33, 35), (8, 16, 20, 41), (3, 22, 30, 45)), **more):
    """A population whose members have a row of metrics after 10, 20, 30 and 40 updates of 100 steps."""
    folder.mkdir(exist_ok=True)
    config = {**CONFIG, "population": DESCRIBED, **more}
    (folder / "config.json").write_text(json.dumps({**config, "seeds": len(returns)}))
    lines = [
        {"update": u, "seed": s, "parent": p, "score": x, "tuned": {"learning_rate": lr, "clip": clip}}
        for u, s, p, x, lr, clip in rows
    ]
    (folder / "lineage.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for seed, values in enumerate(returns):
        run = folder / f"seed-{seed}"
        run.mkdir()
        (run / "config.json").write_text(json.dumps({**config, "seed": seed}))
        found = [{"update": 10 * k, "env_steps": 1000 * k, "train_return_mean": x} for k, x in enumerate(values, 1)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    return folder


def finish(folder, *returns):
    """Write what each member reached in the end."""
    (folder / "summary.json").write_text(json.dumps({"eval_returns": {str(k): x for k, x in enumerate(returns)}}))


def test_a_copy_begins_a_life_and_ends_another():
    lives = lives_of(LineageRow(u, s, p, x, {"learning_rate": lr}) for u, s, p, x, lr, _ in ROWS)
    assert [(x.seed, x.begin, x.end, x.parent, x.is_replaced, x.score) for x in lives] == [
        (0, 0, 20, None, True, 15.0),
        (1, 0, 30, None, True, 20.0),
        (2, 0, 10, None, True, 3.0),
        (2, 10, 30, 0, False, 30.0),
        (0, 20, 30, 3, False, 33.0),
        (1, 30, 30, 4, False, None),
    ]
    assert line_of_descent(lives, 1) == [0, 3, 4, 5]
    assert line_of_descent(lives, 2) == [0, 3]


def test_members_that_copy_each_other_at_once_have_the_states_of_before():
    steps = [
        LineageRow(0, 0, None, None, {}),
        LineageRow(0, 1, None, None, {}),
        LineageRow(5, 0, 1, 1.0, {}),
        LineageRow(5, 1, 0, 2.0, {}),
    ]
    assert [life.parent for life in lives_of(steps)] == [None, None, 1, 0]


def test_rows_may_begin_in_the_middle_of_a_lineage():
    lives = lives_of(LineageRow(u, s, p, x, {}) for u, s, p, x, _, _ in ROWS if u >= 20)
    assert [(life.seed, life.begin, life.parent) for life in lives] == [
        (0, 20, None), (1, 20, None), (2, 20, None), (1, 30, 0)]  # fmt: skip


def test_the_best_member_is_judged_by_evaluations_then_by_training():
    assert best_member([0, 1, 2], {0: 5.0, 1: 9.0, 2: 9.0}, {0: 7.0, 1: 1.0, 2: 2.0}) == 2
    assert best_member([0, 1, 2], {}, {0: 7.0, 1: 7.0}) == 0
    assert best_member([0, 1], {}, {}) is None


def test_lives_and_copies_are_at_their_steps_and_values(tmp_path):
    found = lineage_picture(write(tmp_path / "pop"), Look())
    assert found.is_log == {"learning_rate": True, "clip": False}
    assert found.life_lines("learning_rate") == [
        LifeLine(0, 0, 2000, 0.001),
        LifeLine(1, 0, 3000, 0.01),
        LifeLine(2, 0, 1000, 0.1),
        LifeLine(3, 1000, 4000, 0.0012),
        LifeLine(4, 2000, 4000, 0.00144),
        LifeLine(5, 3000, 4000, 0.0018),
    ]
    assert found.copy_lines("clip") == [
        CopyLine(3, (1000, 0.1), (1000, 0.12)),
        CopyLine(4, (2000, 0.12), (2000, 0.1)),
        CopyLine(5, (3000, 0.1), (3000, 0.11)),
    ]
    assert found.scores == [15, 20, 3, 45, 35, 41]
    (tmp_path / "pop" / "seed-0" / "metrics.jsonl").unlink()  # it has not written any row since it was resumed
    assert lineage_picture(tmp_path / "pop", Look()).scores == [15, 20, 3, 45, 33, 41]
    assert lineage_picture(tmp_path / "pop", Look(by="updates")).life_lines("clip")[3] == LifeLine(3, 10, 40, 0.12)


def test_the_bold_line_goes_from_parent_to_copy(tmp_path):
    folder = write(tmp_path / "pop")
    assert lineage_picture(folder, Look()).best == 2  # the highest training return so far
    finish(folder, 100.0, 300.0, 200.0)
    found = lineage_picture(folder, Look())
    assert (found.best, found.descent) == (1, [0, 3, 4, 5])
    assert descent_path(found, "learning_rate") == [
        (0, [(0, 0.001), (1000, 0.001)]),
        (3, [(1000, 0.001), (1000, 0.0012), (2000, 0.0012)]),
        (4, [(2000, 0.0012), (2000, 0.00144), (3000, 0.00144)]),
        (5, [(3000, 0.00144), (3000, 0.0018), (4000, 0.0018)]),
    ]
    assert [(life, curve.tolist()) for life, curve in descent_returns(found)] == [
        (0, [[1000, 11]]),
        (3, [[1000, 11], [2000, 22]]),
        (4, [[2000, 22], [3000, 33]]),
        (5, [[3000, 33], [4000, 41]]),
    ]


def test_an_exchange_between_rows_of_metrics_or_after_them_is_placed_in_proportion(tmp_path):
    rows = [row for row in ROWS if row[0] == 0] + [(25, *row[1:]) for row in ROWS if row[0] == 10]
    found = lineage_picture(write(tmp_path / "pop", rows), Look())
    assert found.copy_lines("clip") == [CopyLine(3, (2500, 0.1), (2500, 0.12))]
    rows = rows[:3] + [(60, *row[1:]) for row in rows[3:]]
    found = lineage_picture(write(tmp_path / "late", rows), Look())
    assert found.copy_lines("clip") == [CopyLine(3, (6000, 0.1), (6000, 0.12))]


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_a_picture_is_written_whole_and_is_the_same_each_time(tmp_path, ending, capsys):
    folder = write(tmp_path / "pop", env="py:x.$\\y$")
    files = [tmp_path / f"{name}.{ending}" for name in "ab"]
    for file in files:
        main(["plot", str(folder), "--lineage", "-o", str(file), "--by", "updates"])
    assert f"wrote {files[0]}" in capsys.readouterr().out
    if ending == "svg":
        words = {element.text for element in ET.parse(files[0]).iter() if element.tag.endswith("text")}
        assert {
            "ppo × fused on py:x.$\\y$, a population of 3 (pop)",
            "line of descent of the best member, seed 2",
            "learning rate",
            "clip",
            "training return",
            "updates",
            "0.01",
        } <= words
    if ending != "pdf":
        assert files[0].read_bytes() == files[1].read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"a.{ending}", f"b.{ending}", "pop"]


def test_its_name_is_lineage_where_none_is_given(tmp_path, monkeypatch):
    write(tmp_path / "pop")
    monkeypatch.chdir(tmp_path)
    main(["plot", "pop", "--lineage"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lineage.png", "pop"]


def test_a_population_without_any_finished_episode_is_drawn(tmp_path):
    folder = write(tmp_path / "pop", ROWS[:3], ((None,), (None, None), ()))
    (folder / "seed-2" / "metrics.jsonl").unlink()
    main(["plot", str(folder), "--lineage", "-o", str(tmp_path / "a.svg")])
    found = lineage_picture(folder, Look())
    assert (found.best, found.descent, found.scores) == (None, [], [None] * 3)


def test_many_members_are_drawn(tmp_path):
    random = np.random.default_rng(0)
    rows = [(0, k, None, None, 0.001, 0.2) for k in range(64)]
    for update in range(10, 200, 10):
        parents = [int(random.integers(64)) if random.random() < 0.2 else k for k in range(64)]
        rows += [(update, k, parent, float(update + k), 0.001, 0.2) for k, parent in enumerate(parents)]
    folder = write(tmp_path / "pop", rows, [(1, 2, 3)] * 64)
    main(["plot", str(folder), "--lineage", "-o", str(tmp_path / "a.png")])
    assert (tmp_path / "a.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lone"], "lone is no population: --lineage draws a run with --population; leave it out for learning curves"),
        (["pop/seed-1"], "is one member of a population: name the folder around it for its lineage"),
        (["young"], "young has no lineage.jsonl yet: it comes with the first update, so train a little longer"),
        (["torn"], "lineage.jsonl, line 2: no row of a lineage, so the file is damaged"),
        (["vague"], "config.json is damaged: 'population' does not say what is tuned"),
        (["nothing"], "nothing is not a run directory: it has no config.json"),
        (["pop", "lone"], "--lineage draws one population, not 2: name one run directory"),
        (["pop", "--merge-seeds"], "--lineage draws each member of a population by itself: leave out --merge-seeds"),
        (["pop", "--by", "seconds"], "--by seconds: with its parent's state a member has its parent's time"),
        (["pop", "--metric", "train_return_men"], "unknown metric 'train_return_men': did you mean"),
        (["pop", "-o", "a.jpg"], "cannot write a.jpg: a picture is one of .png, .svg, .pdf"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_one_sentence(tmp_path, arguments, said, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("pop", "torn", "young"):
        write(tmp_path / name)
    write(tmp_path / "vague", population={"every": 10})
    (tmp_path / "torn" / "lineage.jsonl").write_text('{"update": 0, "seed": 0, "tuned": {}}\n{"update": 0, "se')
    (tmp_path / "young" / "lineage.jsonl").unlink()
    (tmp_path / "lone").mkdir()
    (tmp_path / "lone" / "config.json").write_text(json.dumps(CONFIG))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        main(["plot", *arguments, "--lineage"])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_values_that_are_no_numbers_are_left_out(tmp_path):
    folder = write(tmp_path / "pop")
    rows = [json.loads(line) for line in (folder / "lineage.jsonl").read_text().splitlines()]
    rows[0]["tuned"] = {"learning_rate": "high", "clip": None}
    rows[3]["score"], rows[5]["parent"], rows[4]["tuned"] = [], {}, {"learning_rate": -1.0}
    (folder / "lineage.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    main(["plot", str(folder), "--lineage", "-o", str(tmp_path / "a.svg")])
    assert 0 not in {line.life for line in lineage_picture(folder, Look()).life_lines("learning_rate")}


def test_members_without_metrics_ask_for_more_training(tmp_path):
    with pytest.raises(TesseraError, match=r"the members in .*pop have no metrics yet: train a little longer"):
        lineage_picture(write(tmp_path / "pop", returns=((), (), ())), Look())
