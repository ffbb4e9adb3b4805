"""What is known of one run: the header of its page, its row among others, its configuration."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

from tessera.dash.status import LIVE, SILENCE, moment, read_status
from tessera.dash.tails import newest_rows
from tessera.dash.tree import Tree
from tessera.dash.values import flat, named, number, parse, plain, text, whole

X_COLUMNS = ("env_steps", "seconds", "update")
LONGEST_VALUE = 500
"""Characters of a value of the configuration that are shown."""
MOST_KEYS = 1000
KEPT_BYTES = 16 << 20
"""Of files whose content is kept."""
PLAN_ENTRIES = ("algorithm", "env", "policy", "engine")


@dataclass(frozen=True)
class Facts:
    """A run as its folder tells of it now."""

    name: str
    config: dict[str, Any]
    status: dict[str, Any] | None
    summary: dict[str, Any]
    rows: list[dict[str, Any]]
    """The newest rows of metrics."""
    changed: float
    """When it last wrote metrics or a status."""
    now: float

    @property
    def newest(self) -> dict[str, Any]:
        """The newest row of metrics; empty before the first."""
        return self.rows[-1] if self.rows else {}

    @property
    def state(self) -> tuple[str, str]:
        """Its state, and why. A run that writes no status is judged by its files."""
        if self.status and self.status["state"]:
            return self.status["state"], self.status["why"]
        if self.summary:
            return "finished", text(self.summary.get("stop_reason"))
        if self.now - self.changed < SILENCE:
            return ("running" if self.rows else "starting"), ""
        return "stopped", f"no sign of life since {moment(self.changed)}"

    def header(self) -> dict[str, Any]:
        """The figures at the top of a run's page."""
        status, row, summary = self.status or {}, self.newest, self.summary
        state, why = self.state
        mean, interval = self._evaluation()
        update = max(whole(status.get("update")), whole(row.get("update")), whole(summary.get("updates")))
        env_steps = max(whole(source.get("env_steps")) for source in (status, row, summary))
        updates = whole(status.get("updates")) or (whole(summary.get("updates")) if state == "finished" else 0)
        seconds = (status.get("seconds"), row.get("seconds"), summary.get("wall_seconds"))
        speed = first(row.get("steps_per_second"), summary.get("steps_per_second"))
        return {
            "return_mean": first(
                row.get("train_return_iqm"), row.get("train_return_mean"), summary.get("train_return_mean")
            ),
            "eval_return_mean": mean,
            "eval_interval": interval,
            "steps_per_second": speed,
            "time_left": self._time_left(update, updates, env_steps, speed) if state in LIVE else None,
            **self.identity(),
            "state": state,
            "why": why,
            "update": update,
            "updates": updates,
            "env_steps": env_steps,
            "seconds": max(known) if (known := [x for x in map(number, seconds) if x is not None]) else None,
        }

    def identity(self) -> dict[str, str]:
        """What it trains, and how."""
        algorithm = named(self.config.get("algorithm"))
        known = {**self.config, "algorithm": algorithm.get("name")}
        found = {key: text(known.get(key)) or text(self.summary.get(key)) for key in PLAN_ENTRIES}
        system = text(self.config.get("system"))
        if system and system != found["algorithm"]:
            found["algorithm"] = f"{system} ({found['algorithm']})"
        return found

    def _evaluation(self) -> tuple[float | None, list[float] | None]:
        """Return of the newest greedy evaluation, with a 95 % interval where it is known.

        Of one run it is the mean over episodes, of several seeds the interquartile mean over those.
        """
        over_seeds = [number(self.summary.get(f"eval_return_iqm{end}")) for end in ("", "_low", "_high")]
        if "seeds" in self.config and None not in over_seeds:
            middle, low, high = over_seeds
            return middle, [low, high]  # type: ignore[list-item]
        mean = number(self.summary.get("eval_return_mean"))
        std, episodes = number(self.summary.get("eval_return_std")), whole(self.summary.get("eval_episodes"))
        if mean is not None and std is not None and episodes > 1:
            half = 1.96 * std / math.sqrt(episodes)
            return mean, [mean - half, mean + half]
        return first(mean, self.newest.get("eval/return_mean")), None

    def _time_left(self, update: int, updates: int, env_steps: int, speed: float | None) -> float | None:
        if not speed or speed <= 0:
            return None
        if updates and update:
            return max(0.0, (updates - update) * env_steps / update / speed)
        steps = whole(self.config.get("steps"))
        return max(0.0, (steps - env_steps) / speed) if steps else None


def first(*values: Any) -> float | None:
    """The first that is a finite number."""
    return next((x for x in map(number, values) if x is not None), None)


class FactsReader:
    """Reads facts of runs; files that have not changed are not read again."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._bytes = 0
        self._kept: dict[tuple[str, str], tuple[tuple[int, ...], dict[str, Any]]] = {}

    def facts(self, name: str, rows: int = 1) -> Facts:
        """What is known of a run, with so many of its newest rows; of one that is not there yet, nothing."""
        now = time.time()
        files = (("metrics.jsonl",), ("live", "status.json"), ("config.json",))
        times = [found.st_mtime for inside in files if (found := self._tree.stat(name, *inside))]
        newest = newest_rows(lambda: self._tree.open(name, "metrics.jsonl"), rows)
        config, summary = self.json(name, "config.json"), self.json(name, "summary.json")
        return Facts(name, config, read_status(self._tree, name, now), summary, newest, max(times, default=0), now)

    def json(self, name: str, file: str) -> dict[str, Any]:
        """A JSON object of a run, cleaned; empty if there is none."""
        found = self._tree.stat(name, file)
        if found is None:
            return {}
        sign = (found.st_ino, found.st_size, found.st_mtime_ns)
        kept = self._kept.get((name, file))
        if kept is None or kept[0] != sign:
            kept = (sign, plain(named(parse(self._tree.read(name, file) or b""))))
            self._bytes += found.st_size
            if self._bytes > KEPT_BYTES:
                self._bytes = found.st_size
                self._kept.clear()
            self._kept[name, file] = kept
        return kept[1]


def config_texts(config: dict[str, Any]) -> dict[str, str]:
    """The configuration of a run as text, under names with dots."""
    found = list(flat(config).items())[:MOST_KEYS]
    return {name: value[:LONGEST_VALUE] for name, value in found}
