"""Metrics of a run under stable names (docs/metrics.md), written as JSON lines and TensorBoard events."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import secrets
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tessera.engines.replica.reports import Reports
from tessera.errors import TesseraError
from tessera.program.accounting import Tally
from tessera.support.files import open_to_append, read_text, write_text

WINDOW = 100
"""Episodes that the training return is averaged over."""


class Meter:
    """Counters of a whole run, across resumes: updates, steps, episodes, recent returns."""

    def __init__(self) -> None:
        self.updates = 0
        self.env_steps = 0
        self.episodes = 0
        self.lag_mean = math.nan
        """Updates by which the params that played trail behind those that the newest gradients were applied to."""
        self.lag_max = math.nan
        """Maximum of the same lag."""
        self.streams: dict[str, dict[str, float]] = {}
        """For each cut stream: lag, fill of its queue, waits and drops, over the newest updates."""
        self.recent: deque[tuple[int, float, float]] = deque()
        """(episodes, sum of returns, sum of lengths) of the newest updates, which hold WINDOW episodes together."""
        self.own: deque[tuple[int, float, float]] = deque()
        """The same since the last exchange of a population: those that this member has played itself."""

    def count(self, tally: Tally) -> None:
        """Add the steps and episodes of a tally, whose arrays are [updates]."""
        self.env_steps += int(tally.steps.sum())
        self.episodes += int(tally.episodes.sum())
        for n, total, length in zip(tally.episodes, tally.return_sum, tally.length_sum, strict=True):
            if n:
                for window in (self.recent, self.own):
                    window.append((int(n), float(total), float(length)))
                    while sum(r[0] for r in window) - window[0][0] >= WINDOW:
                        window.popleft()

    def row(self, reports: Reports) -> dict[str, float]:
        """One row of metrics: the counters, and means over the updates of `reports`."""
        learned = {f"learn/{name}": float(np.mean(values)) for name, values in reports.metrics.items()}
        self._update_streams(reports)
        norms = (
            np.sqrt(np.asarray(reports.guard.gradients, np.float64).sum(-1)) if len(reports.guard.params) else np.nan
        )
        return {
            "update": self.updates,
            "env_steps": self.env_steps,
            "episodes": self.episodes,
            "train_return_mean": self.mean_return,
            "train_length_mean": self.mean_length,
            "learn/gradient_norm": float(np.mean(norms)),
            **learned,
            "lag/mean": self.lag_mean if len(reports.lag_mean) else math.nan,
            "lag/max": self.lag_max if len(reports.lag_max) else math.nan,
            **{f"info/{name}": total / count for name, (total, count) in sorted(reports.info.items()) if count},
            **{f"stream/{name}/{key}": x for name, flow in self.streams.items() for key, x in flow.items()},
        }

    def _update_streams(self, reports: Reports) -> None:
        lag = reports.lag()
        if lag is not None:
            self.lag_mean, self.lag_max = lag
        self.streams = {
            name: {
                "messages": flow.messages,
                "dropped": flow.dropped,
                "waits": flow.waits,
                "wait_seconds": flow.wait_seconds,
                "bytes": flow.bytes,
                "fill": flow.fill / max(flow.messages, 1),
                **({"lag_mean": flow.lag_mean, "lag_max": flow.lag_max} if flow.lags else {}),
            }
            for name, flow in reports.flows.items()
        }

    @property
    def mean_return(self) -> float:
        """Mean return of at least the last WINDOW episodes; nan before the first."""
        return _mean(self.recent, 1)

    @property
    def mean_length(self) -> float:
        """Mean length of the same episodes."""
        return _mean(self.recent, 2)

    @property
    def own_return(self) -> float:
        """Mean return of the newest episodes since the last exchange of a population; nan if none has ended."""
        return _mean(self.own, 1)

    def to_json(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return {
            "updates": self.updates,
            "env_steps": self.env_steps,
            "episodes": self.episodes,
            "recent": [list(r) for r in self.recent],
            "own": [list(r) for r in self.own],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Meter:
        """Counters as a checkpoint holds them."""
        meter = cls()
        meter.updates, meter.env_steps, meter.episodes = data["updates"], data["env_steps"], data["episodes"]
        meter.recent = deque((int(n), float(a), float(b)) for n, a, b in data["recent"])
        meter.own = deque((int(n), float(a), float(b)) for n, a, b in data.get("own", ()))
        return meter


def _mean(window: Sequence[tuple[int, float, float]], column: int) -> float:
    episodes = sum(r[0] for r in window)
    return sum(r[column] for r in window) / episodes if episodes else math.nan


class MetricsWriter:
    """metrics.jsonl and TensorBoard events of a run directory; rows after the update of a resume are dropped."""

    def __init__(self, folder: Path, resumed_at: int | None = None) -> None:
        path = folder / "metrics.jsonl"
        if resumed_at is not None and path.exists():
            text = _text(path)
            kept = "".join(line + "\n" for line in text.splitlines() if _update_of(line) <= resumed_at)
            if kept != text:
                write_text(path, kept)
        self._folder = folder
        self._file = open_to_append(path)
        self._unwritten = b""
        """Rows for which there was no room on the disk."""
        self.failure: OSError | None = None
        """Why the newest rows could not be written."""
        self._board = _Board(folder, resumed_at)

    def write(self, row: dict[str, float]) -> str:
        """Append one row; values that are not finite become null. What cannot be written now is written later.

        Returns what is to be said when writing has begun to fail.
        """
        plain = {k: (v if math.isfinite(v) else None) for k, v in row.items()}
        self._unwritten += (json.dumps(plain) + "\n").encode()
        try:
            self._write_rows()
            self._board.write({k: v for k, v in plain.items() if v is not None and k != "update"}, int(row["update"]))
            self.failure = None
        except OSError as error:
            known, self.failure = self.failure, error
            if known is None:
                return (
                    f"metrics cannot be written to {self._folder} ({error.strerror}): training goes on, and they are "
                    "kept until they can"
                )
        return ""

    def sync(self) -> None:
        """Have the rows so far on the disk: a checkpoint that outlives a power cut finds the rows before it."""
        with contextlib.suppress(OSError):  # a disk that is full is said by `failure`
            self._write_rows()
            os.fsync(self._file)

    def close(self) -> None:
        """Close both files."""
        self.sync()
        os.close(self._file)
        self._board.close()

    def _write_rows(self) -> None:
        """Append whole rows or nothing: half a row would make the next one unreadable too."""
        size = os.fstat(self._file).st_size
        try:
            if os.write(self._file, self._unwritten) < len(self._unwritten):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.ftruncate(self._file, size)
            raise
        self._unwritten = b""


class _Board:
    """TensorBoard events, written by the thread that has them: an error is seen, and nobody waits for a dead thread."""

    def __init__(self, folder: Path, resumed_at: int | None) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.summary import scalar

        self._event, self._scalar = Event, scalar
        # a name that nobody can foresee, since this file is opened by its path
        self._file = EventsWriter(str(folder / "events"), f".{secrets.token_hex(4)}")
        if resumed_at is not None:  # TensorBoard forgets what comes after
            started = SessionLog(status=SessionLog.START)
            self._file.write_event(Event(wall_time=time.time(), step=resumed_at + 1, session_log=started))

    def write(self, values: dict[str, float], step: int) -> None:
        event = self._event(wall_time=time.time(), step=step)
        for name, value in values.items():
            event.summary.value.extend(self._scalar(name, value).value)
        self._file.write_event(event)
        self._file.flush()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Rows of metrics.jsonl; a line that a kill truncated is left out."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in _text(path).splitlines() if _update_of(line) < math.inf]


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except UnicodeDecodeError as error:
        raise TesseraError(f"{path} is damaged ({error}): it is not text; delete it to go on without it") from error


def _update_of(line: str) -> float:
    """Update of a row; infinite for a truncated line."""
    try:
        return float(json.loads(line)["update"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return math.inf
