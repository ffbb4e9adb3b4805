"""Learning curves: which rows they are of, how they are joined and smoothed, and what is refused."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from tessera.cli.main import main
from tessera.errors import TesseraError
from tessera.runs.curves import Look, curves_of, smoothed

CONFIG = {"algorithm": {"name": "ppo"}, "env": "gymnax:CartPole-v1", "policy": "fused", "precision": "f32"}


def write(folder, returns, seed=0, **more):
    """A run folder with a row for each return; losses are ten times the returns."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, "seed": seed, **more}))
    rows = [
        {"update": k, "env_steps": 10 * k, "seconds": k / 2, "train_return_mean": x, "loss": 10 * x}
        for k, x in enumerate(returns, 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize(
    ("opponent", "evaluated", "expected", "told"),
    [
        ("greedy", True, [-0.5, 0.5], "greedy"),  # in self-play nobody wins on average
        ("greedy", False, [0.0, 0.0], ""),
        (None, True, [0.0, 0.0], ""),
    ],
)
def test_a_curve_is_of_evaluations_where_an_opponent_was_played(tmp_path, opponent, evaluated, expected, told):
    run = write(tmp_path / "run", [0.0, 0.0], **({} if opponent is None else {"opponent": opponent}))
    if evaluated:
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        rows = [{**row, "eval/return_mean": x} for row, x in zip(rows, (-0.5, 0.5), strict=True)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (curve,) = curves_of([run], Look())
    assert (curve.line.x.tolist(), curve.line.y.tolist(), curve.opponent) == ([10, 20], expected, told)


@pytest.mark.parametrize(("by", "x"), [("steps", [10, 20]), ("seconds", [0.5, 1]), ("updates", [1, 2])])
def test_any_metric_is_drawn_over_what_was_asked_for(tmp_path, by, x):
    (curve,) = curves_of([write(tmp_path / "run", [1.0, 2.0])], Look("loss", by))
    assert (curve.line.x.tolist(), curve.line.y.tolist()) == (x, [10, 20])
    assert curve.label == "ppo × fused, seed 0 (run)"


def test_runs_that_differ_in_their_seed_only_become_one_curve_with_a_band(tmp_path):
    seeds = [write(tmp_path / f"s{k}", [1.0 * k, 2.0 * k], seed=k) for k in range(4)]
    other = write(tmp_path / "other", [7.0, 7.0], seed=0, policy="central")
    merged, alone = curves_of([*seeds[:2], other, *seeds[2:]], Look(merge=True))
    assert merged.label == "ppo × fused, 4 seeds (s0)"
    np.testing.assert_allclose(merged.line.y, [1.5, 3.0])  # of 0, 1, 2, 3 without the lowest and the highest
    assert (merged.line.low < merged.line.y).all()
    assert (merged.line.y < merged.line.high).all()
    assert (alone.seeds, alone.line.y.tolist()) == (1, [7, 7])
    assert len(curves_of([*seeds, other], Look())) == 5


def test_a_folder_of_seeds_is_one_curve_and_merges_with_a_lone_run(tmp_path):
    folder = tmp_path / "both"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, "seed": 1, "seeds": 2}))
    for seed in (1, 2):
        write(folder / f"seed-{seed}", [1.0 * seed, 3.0 * seed], seed=seed)
    lone = write(tmp_path / "lone", [3.0, 9.0], seed=3)
    (curve,) = curves_of([folder], Look())
    assert (curve.seeds, curve.line.y.tolist()) == (2, [1.5, 4.5])
    (curve,) = curves_of([folder, lone], Look(merge=True))
    assert (curve.seeds, curve.line.y.tolist()) == (3, [2.0, 6.0])


def test_smoothing_takes_the_mean_of_neighbours_and_fewer_at_the_ends():
    values = np.array([0.0, 3.0, 6.0, 0.0])
    np.testing.assert_allclose(smoothed(values, 3), [1.5, 3, 3, 3])
    np.testing.assert_allclose(smoothed(values, 100), [2.25] * 4)
    assert smoothed(values, 1) is values


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_pictures_of_the_same_curves_are_the_same(tmp_path, ending, capsys):
    run = write(tmp_path / "run", [1.0, 5.0, 2.0])
    files = [tmp_path / f"{name}.{ending}" for name in "ab"]
    for file in files:
        main(["plot", str(run), "-o", str(file), "--smooth", "2", "--by", "updates"])
    assert f"wrote {files[0]}" in capsys.readouterr().out
    if ending == "svg":
        root = ET.parse(files[0]).getroot()
        words = {element.text for element in root.iter() if element.tag.endswith("text")}
        assert {"updates", "(means of 2 rows)", "ppo × fused, seed 0 (run)"} <= words
    if ending != "pdf":  # which notes when it was made
        assert files[0].read_bytes() == files[1].read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"a.{ending}", f"b.{ending}", "run"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--metric", "losss"], "unknown metric 'losss': did you mean 'loss'?"),
        (["--by", "hours"], "unknown axis 'hours'"),
        (["--smooth", "0"], "--smooth 0: it is a number of rows, at least 1"),
        (["-o", "a.jpg"], "cannot write a.jpg: a picture is one of .png, .svg, .pdf"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_one_sentence(tmp_path, flags, said, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "run", [1.0, 2.0])
    with pytest.raises(SystemExit) as ended:
        main(["plot", "run", *flags])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_without_the_metric_is_named(tmp_path):
    runs = [write(tmp_path / "one", [1.0]), write(tmp_path / "two", [])]
    with pytest.raises(TesseraError, match="two has no metrics yet: train longer"):
        curves_of(runs, Look("loss"))
    with pytest.raises(TesseraError, match="two has no finished episode to draw"):
        curves_of(runs, Look())


def test_names_of_many_runs_stand_beside_the_axes(tmp_path):
    runs = [write(tmp_path / f"run_{k:02}", [1.0, 2.0], seed=k) for k in range(60)]
    sizes = []
    for count in (10, 60):
        main(["plot", *map(str, runs[:count]), "-o", str(tmp_path / "a.svg")])
        root = ET.parse(tmp_path / "a.svg").getroot()
        width, height = map(float, root.attrib["viewBox"].split()[2:])
        texts = [element for element in root.iter() if element.tag.endswith("text")]
        assert all(0 <= float(text.attrib["y"]) <= height for text in texts if "y" in text.attrib)
        assert sum("fused, seed" in (text.text or "") for text in texts) == count
        sizes.append((width, height))
    assert sizes[1][0] > 1.5 * sizes[0][0]
    assert sizes[1][1] == sizes[0][1]


def test_names_are_no_formulas(tmp_path):
    run = write(tmp_path / "a$\\nothing$b", [1.0, 2.0], env="py:x.$\\y$")
    main(["plot", str(run), "-o", str(tmp_path / "a.svg")])
    words = {element.text for element in ET.parse(tmp_path / "a.svg").iter() if element.tag.endswith("text")}
    assert {"ppo × fused, seed 0 (a$\\nothing$b)", "py:x.$\\y$"} <= words
