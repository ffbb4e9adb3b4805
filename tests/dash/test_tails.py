"""Files that grow while they are read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from recorded_runs import row

from tessera.dash.columns import MOST_POINTS, Columns
from tessera.dash.series import AllSeries, Series
from tessera.dash.tails import Tail, newest_rows


def opener(path: Path):
    return lambda: os.open(path, os.O_RDONLY) if path.exists() else None


def test_a_tail_gives_whole_lines_only(tmp_path):
    path = tmp_path / "rows"
    path.write_bytes(b"old\ntor")
    tail = Tail(opener(path))
    with path.open("ab") as file:
        file.write(b"n\nnew\nhal")
    assert tail.lines() == [b"torn", b"new"]
    assert tail.lines() == []
    with path.open("ab") as file:
        file.write(b"f\n")
    assert tail.lines() == [b"half"]


def test_a_tail_begins_at_the_beginning_of_a_file_that_appears(tmp_path):
    path = tmp_path / "rows"
    tail = Tail(opener(path))
    assert tail.lines() == []
    path.write_bytes(b"one\ntwo\n")
    assert tail.lines() == [b"one", b"two"]


def test_a_tail_goes_to_the_end_of_a_file_that_was_written_again(tmp_path):
    path = tmp_path / "rows"
    path.write_bytes(b"one\ntwo\n")
    tail = Tail(opener(path))
    (tmp_path / "draft").write_bytes(b"1\n2\n3\n4\n5\n")
    os.replace(tmp_path / "draft", path)
    assert tail.lines() == []
    with path.open("ab") as file:
        file.write(b"6\n")
    assert tail.lines() == [b"6"]


def test_newest_rows_leave_out_what_is_torn_or_no_row(tmp_path):
    path = tmp_path / "rows"
    path.write_text('{"a": 1}\n{"a": 2}\nnonsense\n[3]\n{"a": 4}\n{"a": 5')
    assert newest_rows(opener(path), 2) == [{"a": 2}, {"a": 4}]
    assert newest_rows(opener(tmp_path / "none"), 2) == []


def test_newest_rows_of_a_file_without_line_ends_are_none(tmp_path):
    path = tmp_path / "rows"
    path.write_bytes(b"x" * (3 << 20))
    assert newest_rows(opener(path), 2) == []
    assert len(Series(opener(path)).refresh()) == 0


def test_columns_keep_the_lowest_and_the_highest_value_of_what_they_join():
    columns = Columns()
    for begin in range(0, 20_000, 1000):
        columns.extend([{"x": k, "y": 1000.0 if k == 777 else k % 2} for k in range(begin, begin + 1000)])
    assert MOST_POINTS // 2 <= len(columns) <= 2 * MOST_POINTS
    found = columns.points(["x", "y"], 100)
    assert len(found["x"].mean) == 100
    assert found["y"].high.max() == 1000.0
    assert found["y"].low.min() == 0.0
    assert found["x"].mean == pytest.approx(np.arange(100) * 200 + 99.5, abs=30)
    assert np.median(found["y"].mean) == pytest.approx(0.5, abs=0.05)


def test_columns_take_numbers_and_nothing_else():
    columns = Columns()
    columns.extend([{"x": 1}, {"x": None}, {"x": "3"}, {"x": [4]}, {"x": 10**400}, {"x": float("inf")}, {}, {"x": 8.5}])
    known = columns.points(["x"], 100)["x"].mean
    assert np.flatnonzero(np.isfinite(known)).tolist() == [0, 7]


def test_columns_of_too_many_names_are_left_out():
    columns = Columns()
    columns.extend([{f"name {k}": 1.0 for k in range(10_000)}])
    assert columns.nbytes < 20_000


def test_a_file_is_read_on_where_reading_ended(tmp_path):
    path = tmp_path / "rows"
    path.write_text("".join(json.dumps(row(k)) + "\n" for k in range(1, 11)) + '{"update": 11')
    series = Series(opener(path))
    assert len(series.refresh()) == 10
    with path.open("a") as file:
        file.write(', "env_steps": 1}\n')
    assert len(series.refresh()) == 11
    path.write_text("".join(json.dumps(row(k)) + "\n" for k in range(1, 4)))
    assert len(series.refresh()) == 3


def test_a_file_that_is_too_large_is_sampled_evenly_and_has_its_last_row(tmp_path):
    path = tmp_path / "rows"
    path.write_text("".join(json.dumps(row(k)) + "\n" for k in range(1, 20_001)))
    series = Series(opener(path))
    few = series.refresh(path.stat().st_size // 10).points(["update", "train_return_mean"], 4000)
    assert series.is_sampled
    x = few["update"].mean
    assert 500 < len(x) < 4000
    assert x[0] == 1
    assert x[-1] == 20_000
    assert np.diff(x).max() < 2000
    assert (few["train_return_mean"].low <= x).all()
    series.refresh(path.stat().st_size)
    assert not series.is_sampled


def test_columns_of_many_files_stay_within_their_room(tmp_path, monkeypatch):
    monkeypatch.setattr("tessera.dash.series.MOST_BYTES", 5000)
    for name in "abcdef":
        (tmp_path / name).write_text("".join(json.dumps(row(k)) + "\n" for k in range(1, 21)))
    kept = AllSeries(lambda name: opener(tmp_path / name))
    for name in "abcdef":
        assert len(kept.columns(name)) == 20
    assert list(kept._kept) == ["f"]
