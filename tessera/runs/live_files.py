"""Writes what a run is doing into its folder, for those who watch it: live/status.json, marks.jsonl and spans.json.

A thread of its own writes, about once a second and at once when a replica dies. It takes at most a hundredth of one
core, and neither a full disk nor a slow one holds up the run.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tessera.engines.base import ReplicaEvent, ReplicaStatus
from tessera.engines.replica.reports import Reports
from tessera.graph.plan import Plan
from tessera.runs.live_status import OVER, LiveStatus, Standing
from tessera.runs.requests import RoundOver
from tessera.support.files import open_to_append, write_bytes

INTERVAL = 1.0
"""Seconds from one status to the next, at the least."""
SHARE = 0.01
"""The most of one core that writing may take."""
SPANS_INTERVAL = 2.0
"""Seconds from one spans.json to the next, at the least."""
MOST_MARKS = 10_000
"""Lines of marks.jsonl; of more, the newer half is kept."""
PATIENCE = 2.0
"""Seconds that a run which ends waits for a write that is under way."""


class LiveFiles:
    """The live files of one run; nothing is written before `open`."""

    def __init__(self, plan: Plan, note: Callable[[str], None]) -> None:
        """`note` tells the user, once, that files cannot be written."""
        self._status, self._note = LiveStatus(plan), note
        self._folder: Path | None = None
        self._replicas: Callable[[], Sequence[ReplicaStatus]] = list
        self._state, self._why = "starting", ""
        self._known: dict[int, str] = {}
        self._since: dict[int, float] = {}
        """When each replica came into its state."""
        self._marks: list[dict[str, Any]] = []
        self._marks_written: int | None = None
        self._spans_written = 0.0
        self._failed = False
        self._writing = threading.Lock()

    def open(self, run_folder: Path, replicas: Callable[[], Sequence[ReplicaStatus]]) -> None:
        """Begin to write into a run folder; `replicas` says what every replica is doing."""
        if self._folder is None:
            self._folder, self._replicas = run_folder / "live", replicas
            _thread.add(self)

    def begin(self, plan: Plan) -> None:
        """Note that a plan begins, or begins again."""
        self._status.begin(plan)
        self._state = "starting"

    def report(self, reports: Reports, standing: Standing) -> None:
        """Note what the engine has just reported."""
        self._status.report(reports, standing)
        self._state = "running"

    @contextmanager
    def during(self, state: str) -> Iterator[None]:
        """Show this state meanwhile."""
        before, self._state = self._state, state
        try:
            yield
        finally:
            self._state = before

    def mark(self, kind: str, text: str, place: int | None = None, update: int | None = None) -> None:
        """Note an event of the run; any thread may."""
        standing = self._status.standing
        self._marks.append(
            {
                "time": time.time(),
                "seconds": standing.seconds,
                "update": standing.update if update is None else update,
                "env_steps": standing.env_steps,
                "kind": kind,
                "place": place,
                "text": text,
            }
        )

    def on_event(self, event: ReplicaEvent) -> None:
        """Note that a replica has died or takes part again, and have it written at once."""
        self.mark(event.kind, event.text, event.place)
        _thread.wake(self)

    def end(self, state: str, why: str) -> None:
        """Note how the run has ended: it is finished, stopped or failed."""
        if self._state not in (*OVER, "failed"):
            self._state, self._why = state, why
            self.mark("end", f"{state}: {why}" if why else state)

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Note what ends the run, if anything does within this block before it is finished."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit, GeneratorExit, RoundOver):
            self.end("stopped", "")
            raise
        except BaseException as error:
            self.end("failed", str(error) or type(error).__name__)
            raise

    def close(self) -> None:
        """Write for the last time."""
        if self._folder is not None:
            _thread.remove(self)
            self.write()

    def write(self) -> None:
        """Write all files, unless another thread still does; one that cannot be written is tried again next time."""
        if not self._writing.acquire(timeout=PATIENCE):
            return
        try:
            assert self._folder is not None
            self._folder.mkdir(exist_ok=True)
            self._write_json("status.json", self._contents())
            self._write_marks()
            now = time.monotonic()
            if now - self._spans_written >= SPANS_INTERVAL and (spans := self._status.spans()):
                self._spans_written = now
                self._write_json("spans.json", spans)
        except Exception as error:  # whatever it is, the run goes on
            if not self._failed:
                self._failed = True
                why = getattr(error, "strerror", None) or str(error)
                self._note(f"{self._folder} cannot be written to ({why}): training goes on, unseen by dashboards")
        finally:
            self._writing.release()

    def _contents(self) -> dict[str, Any]:
        replicas, now = self._replicas(), time.time()
        for replica in replicas:
            state = "finished" if self._state in OVER else replica.in_words
            if self._known.get(replica.place) != state:
                self._known[replica.place], self._since[replica.place] = state, now
        return self._status.status(self._state, self._why, replicas, self._since)

    def _write_json(self, name: str, value: dict[str, Any]) -> None:
        assert self._folder is not None
        data = json.dumps(value, separators=(",", ":")).encode()
        write_bytes(self._folder / name, data, durable=False)

    def _write_marks(self) -> None:
        """Append the newest marks; a line that a kill cut short is ended first."""
        assert self._folder is not None
        count = len(self._marks)
        if not count:
            return
        path = self._folder / "marks.jsonl"
        lines = [json.dumps(mark, separators=(",", ":")).encode() + b"\n" for mark in self._marks[:count]]
        if self._marks_written is None:
            old = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            self._marks_written = old.count(b"\n")
            if old and not old.endswith(b"\n"):
                lines[0] = b"\n" + lines[0]
        if self._marks_written + count > MOST_MARKS:
            kept = (path.read_bytes() + b"".join(lines)).splitlines(keepends=True)[-MOST_MARKS // 2 :]
            write_bytes(path, b"".join(kept), durable=False)
            self._marks_written = len(kept)
        else:
            file = open_to_append(path)
            try:
                os.write(file, b"".join(lines))
            finally:
                os.close(file)
            self._marks_written += count
        del self._marks[:count]


class _LiveThread:
    """Writes the files of all runs of this process in turn; it lives as long as there are any."""

    def __init__(self) -> None:
        self._runs: dict[LiveFiles, bool] = {}
        """Whether each is to be written at once."""
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, run: LiveFiles) -> None:
        """Write the files of a run from now on, first of all now."""
        with self._changed:
            self._runs[run] = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="tessera-live", daemon=True)
                self._thread.start()
            self._changed.notify()

    def wake(self, run: LiveFiles) -> None:
        """Write the files of a run now."""
        with self._changed:
            if run in self._runs:
                self._runs[run] = True
                self._changed.notify()

    def remove(self, run: LiveFiles) -> None:
        """Leave a run's files alone from now on."""
        with self._changed:
            self._runs.pop(run, None)
            self._changed.notify()

    def _work(self) -> None:
        pause, due = INTERVAL, time.monotonic()
        while True:
            with self._changed:
                self._changed.wait_for(lambda due=due: self._urgent() or not self._runs, due - time.monotonic())  # type: ignore[misc]
                if not self._runs:
                    self._thread = None
                    return
                everyone = time.monotonic() >= due
                chosen = [run for run, urgent in self._runs.items() if urgent or everyone]
                self._runs.update(dict.fromkeys(chosen, False))
            begun = time.thread_time()
            for run in chosen:
                run.write()
            if everyone:
                pause = max(INTERVAL, (time.thread_time() - begun) / SHARE)
                due = time.monotonic() + pause

    def _urgent(self) -> bool:
        return any(self._runs.values())


_thread = _LiveThread()
