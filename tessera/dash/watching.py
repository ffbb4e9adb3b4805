"""What is new in a folder since somebody last looked: a few file facts are compared, and only what changed is read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from tessera.dash.answers import Answers
from tessera.dash.facts import X_COLUMNS
from tessera.dash.status import marks_of
from tessera.dash.tails import Tail, rows_of
from tessera.dash.values import number

MOST_ROWS = 500
"""Rows that are passed on at once."""
LOOK_AGAIN = 5.0
"""Seconds after which a run is read without any change: it may have gone silent."""
SEARCH_AGAIN = 10.0
"""Seconds after which runs are searched for again."""


class News(NamedTuple):
    """An event for the page."""

    event: str
    data: Any


class RunWatch:
    """What is new of one run."""

    def __init__(self, answers: Answers, name: str, metrics: Sequence[str]) -> None:
        answers.check(name)
        self._answers, self._tree, self._name = answers, answers.tree, name
        self._columns = (*X_COLUMNS, *metrics)
        self._rows = Tail(answers.metrics_of(name))
        self._marks = Tail(lambda: self._tree.open(name, "live", "marks.jsonl"))
        self._signs: tuple[Any, ...] = ()
        self._last: Any = None
        self._looked = 0.0
        self._videos = answers.videos(name)

    def poll(self) -> list[News]:
        """Events since the last call."""
        files = (("metrics.jsonl",), ("live", "status.json"), ("live", "marks.jsonl"), ("videos",), ("summary.json",))
        signs = tuple(sign(self._tree.stat(self._name, *inside)) for inside in files)
        now = time.monotonic()
        if signs == self._signs and now - self._looked < LOOK_AGAIN:
            return []
        self._signs, self._looked = signs, now
        return [*self._new_rows(), *self._new_marks(), *self._new_videos(), *self._news()]

    def _news(self) -> list[News]:
        """Its status, if it is another one."""
        found = self._answers.news(self._name)
        if found == self._last:
            return []
        self._last = found
        return [News("run", found)]

    def _new_rows(self) -> list[News]:
        rows = [row for text in self._rows.lines() for row in rows_of(text + b"\n")]
        if not rows:
            return []
        shown = [{name: number(row[name]) for name in self._columns if name in row} for row in rows[-MOST_ROWS:]]
        return [News("rows", shown)]

    def _new_marks(self) -> list[News]:
        marks = marks_of(b"".join(line + b"\n" for line in self._marks.lines()))
        return [News("marks", marks)] if marks else []

    def _new_videos(self) -> list[News]:
        videos = self._answers.videos(self._name)
        if videos == self._videos:
            return []
        self._videos = videos
        return [News("videos", videos)]


class RunsWatch:
    """What is new in the list of runs."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._names: list[str] = []
        self._signs: list[Any] = []
        self._last: Any = None
        self._searched = 0.0

    def poll(self) -> list[News]:
        """The list, if it is another one."""
        now = time.monotonic()
        tree = self._answers.tree
        found = [(sign(tree.stat(n, "metrics.jsonl")), sign(tree.stat(n, "live", "status.json"))) for n in self._names]
        if found == self._signs and now - self._searched < SEARCH_AGAIN and self._last is not None:
            return []
        runs = self._answers.runs()
        self._searched = now
        self._names, self._signs = [run["name"] for run in runs["runs"]], found
        if runs == self._last:
            return []
        self._last = runs
        return [News("runs", runs)]


def sign(found: Any) -> tuple[int, ...] | None:
    """What changes in a file's facts when it is written."""
    return None if found is None else (found.st_ino, found.st_size, found.st_mtime_ns)
