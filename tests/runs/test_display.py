"""Progress as people see it."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from tessera.engines.base import ReplicaStatus
from tessera.runs.display import (
    Lines,
    Live,
    Progress,
    Quiet,
    clock,
    fragment_rows,
    line,
    make_display,
    number,
    states,
    stream_rows,
)

HALF = Progress(5, 10, 12_345, 6_789.4, 21.04, 75.2)
BEGUN = Progress(1, 10, 64, math.nan, math.nan, math.nan)
OVER = Progress(10, 10, 640, 1.0, 2.0, 0.0)

STATUS = [
    ReplicaStatus(0, "env+act/0", "running", 118),
    ReplicaStatus(1, "env+act/1", "waiting", 121, stream="[params]"),
    ReplicaStatus(2, "env+act/2", "running", 120),
    ReplicaStatus(3, "store+grad+apply/0", "waiting", 1_120, stream="experience"),
]
LATE = {"messages": 4, "dropped": 2, "waits": 2, "wait_seconds": 0.31, "fill": 0.5, "lag_mean": 1.0, "lag_max": 2.0}
ON_TIME = {**LATE, "dropped": 0, "lag_mean": 0.0, "lag_max": 0.0}
SILENT = {"messages": 0, "dropped": 0, "waits": 0, "wait_seconds": 0.0, "fill": 0.0}
STREAMS = {"params": SILENT, "experience": LATE}


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal of 120 columns gets."""
    written = io.StringIO()

    def console(**options: Any) -> Console:
        return Console(file=written, force_terminal=True, width=120, **options)

    monkeypatch.setattr("rich.console.Console", console)
    return written


def rows_on(screen: io.StringIO) -> list[str]:
    """What was ever shown, row by row, without colours and the like, with one space between columns."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", screen.getvalue().replace("\x1b[0m", "").replace("\x1b[2m", ""))
    return [" ".join(row.split()) for row in plain.splitlines()]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0:00"),
        (59.4, "0:59"),
        (59.6, "1:00"),
        (75.2, "1:15"),
        (3_600, "1:00:00"),
        (3_661, "1:01:01"),
    ],
)
def test_a_clock_shows_minutes_and_hours(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown


def test_a_line_names_updates_steps_return_speed_and_time_left() -> None:
    assert line(HALF) == "update 5/10  steps 12,345  return 21.0  6,789 steps/s  1:15 left"
    assert line(BEGUN) == "update 1/10  steps 64  return -"
    evaluated = replace(HALF, eval_return=34.5)
    assert line(evaluated) == "update 5/10  steps 12,345  return 21.0 (greedy 34.5)  6,789 steps/s  1:15 left"
    assert number(math.nan) == "-"


def test_lines_come_at_intervals_and_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    display = Lines(interval=1e9)
    display.begin("ppo on x")
    display.show(BEGUN)
    display.show(HALF)  # too soon after the first
    display.show(Progress(10, 10, 640, 1.0, 2.0, 0.0))
    display.note("results in y")
    display.end()
    shown = capsys.readouterr().out.splitlines()
    assert shown == [
        "ppo on x",
        line(BEGUN),
        "update 10/10  steps 640  return 2.0  1 steps/s  0:00 left",
        "results in y",
    ]


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    display = make_display(quiet=True)
    assert isinstance(display, Quiet)
    display.begin("title")
    display.show(HALF)
    display.note("text")
    display.end()
    assert capsys.readouterr() == ("", "")


def test_what_is_not_a_terminal_gets_lines_and_a_terminal_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(make_display(quiet=False), Lines)  # pytest's capture is no terminal

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdout", Terminal())
    assert isinstance(make_display(quiet=False), Live)


def test_the_live_display_shows_a_bar_and_notes(screen: io.StringIO) -> None:
    display = Live()
    display.begin("ppo on [x]")
    display.show(BEGUN)
    display.show(HALF)
    display.note("resuming [runs/a] from update 3")
    display.end()
    display.end()  # a run ends it before its last notes, and once more when it leaves
    shown = screen.getvalue()
    assert "ppo on [x]" in shown
    assert "resuming [runs/a] from update 3" in shown
    assert "return 21.0" in shown
    assert "50%" in shown


def test_the_live_display_shows_fragments_and_streams_under_the_bar(screen: io.StringIO) -> None:
    display = Live()
    display.show(BEGUN, STATUS, STREAMS)
    display.show(HALF, STATUS, STREAMS)
    shown = rows_on(screen)
    display.end()
    assert "fragment updates state" in shown
    assert "env+act × 3 118 to 121 2 running, 1 waiting for [params]" in shown
    assert "store+grad+apply 1,120 waiting for experience" in shown
    assert "stream lag mean/max full waited dropped" in shown
    assert "experience 1.0/2 50% 0.3 s 4" in shown  # drops are counted over the whole run
    assert "params - - 0.0 s 0" in shown


def test_what_replicas_did_last_is_not_left_on_the_screen_but_what_streams_did_is(screen: io.StringIO) -> None:
    display = Live()
    display.show(HALF, STATUS, STREAMS)
    before = len(rows_on(screen))
    display.end()
    left = rows_on(screen)[before:]
    assert not [row for row in left if "running" in row]
    assert "experience 1.0/2 50% 0.3 s 2" in left


def test_the_serial_engine_has_the_bar_alone(screen: io.StringIO) -> None:
    display = Live()
    display.show(HALF, [], STREAMS)
    display.end()
    assert "50%" in screen.getvalue()
    assert "experience" not in screen.getvalue()


def test_replicas_in_rare_states_are_only_counted() -> None:
    waits = [f"waiting for {k}" for k in range(12)]
    assert states(["idle"]) == states(["idle"] * 9) == "idle"
    assert states(["running", "idle", "running"]) == "2 running, 1 idle"
    assert states(["running"] * 8 + ["idle"] * 4 + ["starting"] * 2 + waits) == (
        "8 running, 4 idle, 2 starting … and 12 more"
    )


def test_a_fragment_of_many_replicas_has_one_row() -> None:
    status = [ReplicaStatus(k, f"env/{k}", "running", 7) for k in range(1_000)]
    assert fragment_rows(status) == [("env × 1000", "7", "running")]
    assert fragment_rows([]) == []


def test_streams_keep_their_order_however_they_come() -> None:
    assert [row[0] for row in stream_rows(STREAMS, {})] == ["experience", "params"]


def test_a_stream_without_messages_has_no_fill_and_one_without_versions_no_lag() -> None:
    assert stream_rows({"params": SILENT}, {}) == [("params", "-", "-", "0.0 s", "0")]
    assert stream_rows({"experience": ON_TIME}, {"experience": 1_000}) == [
        ("experience", "0.0/0", "50%", "0.3 s", "1,000")
    ]


def test_a_line_names_streams_that_lag_or_have_dropped_something_and_no_others() -> None:
    assert line(HALF, {"experience": ON_TIME, "params": SILENT}, {"experience": 0}) == line(HALF)
    assert line(HALF, STREAMS) == f"{line(HALF)}  experience lag 1.0/2"
    assert line(HALF, {"gradients": ON_TIME}, {"gradients": 3}) == f"{line(HALF)}  gradients 3 dropped"
    assert line(HALF, STREAMS, {"experience": 3}) == f"{line(HALF)}  experience lag 1.0/2, 3 dropped"


def test_lines_count_what_was_dropped_between_them(capsys: pytest.CaptureFixture[str]) -> None:
    display = Lines(interval=1e9)
    display.show(BEGUN, STATUS, {"experience": ON_TIME})
    display.show(HALF, STATUS, STREAMS)  # too soon after the first
    display.show(OVER, STATUS, STREAMS)
    assert capsys.readouterr().out.splitlines() == [line(BEGUN), f"{line(OVER)}  experience lag 1.0/2, 4 dropped"]


def test_the_live_display_ends_quietly_if_nothing_was_shown() -> None:
    Live().end()
