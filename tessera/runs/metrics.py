"""What a run measures, under stable names (docs/metrics.md), and where it is written: JSON lines and TensorBoard."""

from __future__ import annotations

import json
import math
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from tessera.engines.replica.reports import Reports
from tessera.program.accounting import Tally

WINDOW = 100
"""Episodes that the training return is averaged over."""


class Meter:
    """Counts steps and episodes over a whole run, across resumes."""

    def __init__(self) -> None:
        self.updates = 0
        self.env_steps = 0
        self.episodes = 0
        self.lag_mean = math.nan
        """Updates by which what was learned from trails behind, on average over the newest updates; and at most."""
        self.lag_max = math.nan
        self.streams: dict[str, dict[str, float]] = {}
        """For each stream that is cut: lag, fill of its queue, waits and drops, over the newest updates."""
        self.recent: deque[tuple[int, float, float]] = deque()
        """(episodes, sum of returns, sum of lengths) of the latest updates that hold WINDOW episodes together."""

    def count(self, tally: Tally) -> None:
        """Add steps and episodes of some updates; arrays are [updates]."""
        self.env_steps += int(tally.steps.sum())
        self.episodes += int(tally.episodes.sum())
        for n, total, length in zip(tally.episodes, tally.return_sum, tally.length_sum, strict=True):
            if n:
                self.recent.append((int(n), float(total), float(length)))
                while sum(r[0] for r in self.recent) - self.recent[0][0] >= WINDOW:
                    self.recent.popleft()

    def row(self, reports: Reports) -> dict[str, float]:
        """One row of metrics: the state of the run, and means over the updates just made."""
        learned = {f"learn/{name}": float(np.mean(values)) for name, values in reports.metrics.items()}
        self._note_streams(reports)
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
            "lag/mean": self._now("lag_mean", reports),
            "lag/max": self._now("lag_max", reports),
            **{f"stream/{name}/{key}": x for name, flow in self.streams.items() for key, x in flow.items()},
        }

    def _note_streams(self, reports: Reports) -> None:
        for which, reduce in (("lag_mean", np.mean), ("lag_max", np.max)):
            values = getattr(reports, which)
            if len(values) and np.isfinite(values).any():
                setattr(self, which, float(reduce(values[np.isfinite(values)])))
        self.streams = {
            name: {
                "messages": flow.messages,
                "dropped": flow.dropped,
                "waits": flow.waits,
                "wait_seconds": flow.wait_seconds,
                "bytes": flow.bytes,
                "fill": flow.fill / max(flow.messages, 1),
                **({"lag_mean": flow.lag_sum / flow.lags, "lag_max": flow.lag_max} if flow.lags else {}),
            }
            for name, flow in reports.flows.items()
        }

    def _now(self, which: str, reports: Reports) -> float:
        return getattr(self, which) if len(getattr(reports, which)) else math.nan

    @property
    def mean_return(self) -> float:
        """Mean return of the last WINDOW episodes or a few more; nan before the first."""
        return self._mean(1)

    @property
    def mean_length(self) -> float:
        """Mean length of the same episodes."""
        return self._mean(2)

    def _mean(self, column: int) -> float:
        episodes = sum(r[0] for r in self.recent)
        return sum(r[column] for r in self.recent) / episodes if episodes else math.nan

    def to_json(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return {
            "updates": self.updates,
            "env_steps": self.env_steps,
            "episodes": self.episodes,
            "recent": [list(r) for r in self.recent],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Meter:
        """Go on counting from a checkpoint."""
        meter = cls()
        meter.updates, meter.env_steps, meter.episodes = data["updates"], data["env_steps"], data["episodes"]
        meter.recent = deque((int(n), float(a), float(b)) for n, a, b in data["recent"])
        return meter


class MetricsWriter:
    """metrics.jsonl and TensorBoard events of a run directory; rows past the point of resume are dropped."""

    def __init__(self, folder: Path, resumed_at: int | None = None) -> None:
        from tensorboardX import SummaryWriter

        path = folder / "metrics.jsonl"
        if resumed_at is not None and path.exists():
            kept = [line for line in path.read_text().splitlines() if _update_of(line) <= resumed_at]
            path.write_text("".join(line + "\n" for line in kept))
        self._file = path.open("a")
        purge = None if resumed_at is None else resumed_at + 1
        self._board = SummaryWriter(str(folder), purge_step=purge)

    def write(self, row: dict[str, float]) -> None:
        """Append one row; what is not a number is null."""
        plain = {k: (v if math.isfinite(v) else None) for k, v in row.items()}
        self._file.write(json.dumps(plain) + "\n")
        self._file.flush()
        for name, value in plain.items():
            if value is not None and name != "update":
                self._board.add_scalar(name, value, int(row["update"]))

    def close(self) -> None:
        """Finish both files."""
        self._file.close()
        self._board.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Rows of a run directory's metrics.jsonl; a line that a kill cut short is left out."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if _update_of(line) < math.inf]


def _update_of(line: str) -> float:
    """Update of a row; infinite for a line that was cut short."""
    try:
        return json.loads(line)["update"]
    except (json.JSONDecodeError, KeyError, TypeError):
        return math.inf
