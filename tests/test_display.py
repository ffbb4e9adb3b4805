"""Progress as people see it."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
from rich.console import Console

from tessera.display import Lines, Live, Progress, Quiet, clock, line, make_display, number

HALF = Progress(5, 10, 12_345, 6_789.4, 21.04, 75.2)
BEGUN = Progress(1, 10, 64, 0.0, math.nan, math.nan)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0:00"),
        (59.4, "0:59"),
        (59.6, "1:00"),
        (75.2, "1:15"),
        (3_600, "1:00:00"),
        (3_661, "1:01:01"),
        (math.nan, "-"),
        (math.inf, "-"),
    ],
)
def test_a_clock_shows_minutes_and_hours(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown


def test_a_line_names_updates_steps_return_speed_and_time_left() -> None:
    assert line(HALF) == "update 5/10  steps 12,345  return 21.0  6,789 steps/s  1:15 left"
    assert line(BEGUN) == "update 1/10  steps 64  return -  0 steps/s  - left"
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


def test_the_live_display_shows_a_bar_and_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()

    def console(**options: Any) -> Console:
        return Console(file=screen, force_terminal=True, width=120, **options)

    monkeypatch.setattr("rich.console.Console", console)
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


def test_the_live_display_ends_quietly_if_nothing_was_shown() -> None:
    Live().end()
