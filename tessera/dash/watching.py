"""What is new in a folder since somebody last looked: a few file facts are compared, and only what changed is read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from tessera.dash.answers import Answers
from tessera.dash.facts import X_COLUMNS
from tessera.dash.lineage import FILE as LINEAGE
from tessera.dash.status import read_marks
from tessera.dash.tails import Tail, rows_of
from tessera.dash.values import number

SUMMARY = "summary.json"
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
        self._members = answers.members(name)
        self._rows = [Tail(answers.metrics_of(each)) for each in self._members or [name]]
        self._signs: tuple[Any, ...] = ()
        self._looked = 0.0
        self._descent = self._signs_of(LINEAGE, SUMMARY)
        self._last = {"marks": read_marks(self._tree, name), "videos": answers.videos(name)}

    def poll(self) -> list[News]:
        """Events since the last call."""
        files = (("metrics.jsonl",), ("live", "status.json"), ("live", "marks.jsonl"), ("videos",))
        descent = self._signs_of(LINEAGE, SUMMARY)
        signs = (*(sign(self._tree.stat(self._name, *inside)) for inside in files), *descent)
        signs += tuple(sign(self._tree.stat(each, "metrics.jsonl")) for each in self._members)
        now = time.monotonic()
        if signs == self._signs and now - self._looked < LOOK_AGAIN:
            return []
        before, self._signs, self._looked = self._signs or (None,) * len(signs), signs, now
        found = self._new_rows()
        if signs[2] != before[2]:
            found += self._if_another("marks", read_marks(self._tree, self._name))
        if signs[3] != before[3]:
            found += self._if_another("videos", self._answers.videos(self._name))
        if descent != self._descent:
            self._descent = descent
            found += self._if_another("population", self._answers.population(self._name))
        return found + self._if_another("run", self._answers.news(self._name))

    def _signs_of(self, *files: str) -> tuple[Any, ...]:
        return tuple(sign(self._tree.stat(self._name, file)) for file in files)

    def _if_another(self, event: str, data: Any) -> list[News]:
        """What is sent as a whole whenever it changes."""
        if self._last.get(event) == data:
            return []
        self._last[event] = data
        return [News(event, data)]

    def _new_rows(self) -> list[News]:
        """New rows; of several seeds only that there are any, since each has its own."""
        rows = [row for tail in self._rows for text in tail.lines() for row in rows_of(text + b"\n")]
        if not rows:
            return []
        shown = [] if self._members else rows[-MOST_ROWS:]
        return [News("rows", [{name: number(row[name]) for name in self._columns if name in row} for row in shown])]


class RunsWatch:
    """What is new in the list of runs."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._names: list[str] = []
        self._signs: list[Any] = []
        self._last: dict[str, Any] | None = None
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
