"""The meter's windows, metrics.jsonl, and the page that documents every name."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from tessera.engines.replica.reports import Reports
from tessera.graph.streams import STREAM_NAMES
from tessera.program.accounting import Tally
from tessera.program.training_program import Guard
from tessera.runs.metrics import WINDOW, Meter, MetricsWriter, read_metrics

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def documented_names(section: str) -> set[str]:
    """Names in the tables of docs/metrics.md under the heading that names `section`, NAME standing for any stream."""
    parts = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    (body,) = [part for part in parts if part.startswith(f"`{section}`")]
    cells = re.findall(r"^\| (`[^|]+`) \|", body, flags=re.MULTILINE)
    names = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    return {name.replace("/NAME/", f"/{stream}/") for name in names for stream in STREAM_NAMES}


def tally(episodes: list[int], returns: list[float], lengths: list[float], steps: int = 10) -> Tally:
    counts = np.full(len(episodes), steps)
    return Tally(
        episodes=np.asarray(episodes), return_sum=np.asarray(returns), length_sum=np.asarray(lengths), steps=counts
    )


def test_means_are_over_episodes_and_not_over_updates() -> None:
    meter = Meter()
    meter.count(tally([1, 3], [10.0, 6.0], [5.0, 9.0]))
    assert (meter.env_steps, meter.episodes) == (20, 4)
    assert meter.mean_return == pytest.approx(16 / 4)
    assert meter.mean_length == pytest.approx(14 / 4)


def test_before_the_first_episode_the_mean_is_not_a_number() -> None:
    meter = Meter()
    meter.count(tally([0], [0.0], [0.0]))
    assert math.isnan(meter.mean_return)
    assert meter.env_steps == 10


def test_the_window_keeps_the_fewest_latest_updates_that_hold_a_hundred_episodes() -> None:
    meter = Meter()
    meter.count(tally([60, 60, 60], [600.0, 0.0, 60.0], [60.0] * 3))
    assert meter.mean_return == pytest.approx(60 / 120)  # the first 60 episodes have left
    meter.count(tally([WINDOW], [700.0], [100.0]))
    assert meter.mean_return == pytest.approx(7.0)
    meter.count(tally([1], [0.0], [1.0]))
    assert meter.mean_return == pytest.approx(700 / 101)  # 1 alone are too few
    assert meter.episodes == 281


def test_a_meter_goes_on_exactly_after_a_round_trip_through_json() -> None:
    meter = Meter()
    meter.updates = 3
    meter.count(tally([60, 0, 60], [0.1, 0.0, 0.7], [1.0, 0.0, 2.0]))
    again = Meter.from_json(json.loads(json.dumps(meter.to_json())))
    for both in (meter, again):
        both.count(tally([50], [1 / 3], [4.0]))
    assert again.to_json() == meter.to_json()
    assert again.mean_return == meter.mean_return


def test_a_row_holds_means_over_its_updates_and_the_norm_of_all_tensors() -> None:
    meter = Meter()
    meter.updates = 2
    guard = Guard(np.asarray([[9.0, 16.0], [0.0, 1.0]]), np.ones((2, 2)), np.ones((2, 2)))
    row = meter.row(Reports(tally([0, 0], [0.0] * 2, [0.0] * 2), {"loss": np.asarray([1.0, 4.0])}, {}, guard))
    assert row["learn/loss"] == 2.5
    assert row["learn/gradient_norm"] == pytest.approx((5 + 1) / 2)
    assert row["update"] == 2


def test_a_row_holds_means_of_what_environments_told_since_the_row_before() -> None:
    info = {"speed": [6.0, 4], "success": [0.0, 0]}
    row = Meter().row(Reports(tally([0], [0.0], [0.0]), {}, {}, Guard(*[np.ones((1, 1))] * 3), info=info))
    assert {name: x for name, x in row.items() if name.startswith("info/")} == {"info/speed": 1.5}


def test_what_is_not_finite_is_written_as_null(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path)
    writer.write({"update": 1, "a": math.nan, "b": math.inf, "c": 0.5})
    writer.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"update": 1, "a": null, "b": null, "c": 0.5}\n'


def test_a_resumed_writer_drops_rows_after_the_point_of_resume_and_lines_cut_short(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path)
    for update in (1, 2, 5, 9):
        writer.write({"update": update, "x": 1.0})
    writer.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"update": 1')
    assert [row["update"] for row in read_metrics(tmp_path)] == [1, 2, 5, 9]
    writer = MetricsWriter(tmp_path, resumed_at=5)
    writer.write({"update": 6, "x": 2.0})
    writer.close()
    assert [row["update"] for row in read_metrics(tmp_path)] == [1, 2, 5, 6]


def test_a_folder_without_metrics_has_no_rows(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []


@pytest.mark.parametrize("section", ["metrics.jsonl", "summary.json"])
def test_every_documented_name_has_a_line_of_its_own_that_says_something(section: str) -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert documented_names(section)
    assert all(len(row.split("|")[2].strip()) > 10 for row in rows), rows
