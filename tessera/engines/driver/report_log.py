"""Reports of replicas, until the driver takes them: rows of updates, which each replica sends at its own pace."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection
from typing import Any

import jax
import numpy as np

from tessera.channels.link import Flow
from tessera.channels.packing import Arrays, from_leaves
from tessera.engines.replica.reports import ReplicaReport
from tessera.engines.replica.trace import Row
from tessera.envs.base import InfoTotals, merge_totals
from tessera.graph.plan import Plan
from tessera.program.accounting import Tally
from tessera.program.training_program import Guard, Learned


class ReportLog:
    """Reports of each place, in order of updates. The supervisor's thread calls `note`, the driver's the rest."""

    def __init__(self, places: int) -> None:
        self._lock = threading.Lock()
        self._rows: list[list[tuple[int, int, ReplicaReport]]] = [[] for _ in range(places)]
        """For each place: first update, number of updates, report."""
        self._reported = [0] * places
        self._flows: dict[str, Flow] = {}
        self._waits: defaultdict[tuple[int, str], float] = defaultdict(float)
        """Seconds in which each place waited for each stream."""
        self._spans: defaultdict[int, list[Row]] = defaultdict(list)
        """Samples of what each place did."""
        self._info: list[tuple[int, int, InfoTotals]] = []
        """Numbers in `info`: place, updates that it had made by then, sums."""

    def note(self, place: int, meta: dict[str, Any], arrays: Arrays) -> None:
        """Add one message with reports."""
        reports = [_rebuild(k, names, arrays) for k, names in enumerate(meta["metrics"])]
        with self._lock:
            first = meta["first"]
            for report in reports:
                count = jax.tree.leaves(report)[0].shape[1]
                self._rows[place].append((first, count, report))
                first += count
            self._reported[place] = max(self._reported[place], meta["done"])
            for stream, flow in meta["flows"].items():
                self._flows.setdefault(stream, Flow()).merge(Flow(**flow))
                if flow["wait_seconds"]:
                    self._waits[place, stream] += flow["wait_seconds"]
            if meta["spans"]:
                self._spans[place] += meta["spans"]
            if meta["info"]:
                self._info.append((place, meta["done"], meta["info"]))

    def reported(self, place: int) -> int:
        """Updates that a place has reported."""
        return self._reported[place]

    def take_all(self, plan: Plan) -> dict[tuple[int, int], list[ReplicaReport]]:
        """Take all reports."""
        with self._lock:
            out = {(i, r): [report for *_, report in self._rows[k]] for k, (i, r, _) in enumerate(plan.places)}
            self._rows = [[] for _ in self._rows]
            return out

    def take(
        self, plan: Plan, counted: list[int], first: int, count: int
    ) -> dict[tuple[int, int], list[ReplicaReport]]:
        """Take the rows of `count` updates from `first` on at places in `counted`, and all reports of the others."""
        out = {}
        kept = set(counted)
        with self._lock:
            for k, (i, r, _) in enumerate(plan.places):
                if k in kept:
                    out[i, r] = self._cut(k, first, count)
                else:
                    out[i, r] = [report for *_, report in self._rows[k]]
                    self._rows[k] = []
        return out

    def take_flows(self) -> dict[str, Flow]:
        """Take what went through each stream."""
        with self._lock:
            flows, self._flows = self._flows, {}
            return flows

    def take_waits(self, plan: Plan) -> dict[str, dict[str, float]]:
        """Take the seconds in which replicas of each fragment waited for each stream, by its title."""
        with self._lock:
            waits, self._waits = self._waits, defaultdict(float)
        out: dict[str, dict[str, float]] = {placed.title: {} for placed in plan.fragments}
        for (place, stream), seconds in waits.items():
            mine = out[plan.fragments[plan.places[place][0]].title]
            mine[stream] = mine.get(stream, 0.0) + seconds
        return out

    def take_spans(self) -> dict[int, list[Row]]:
        """Take the samples of what each place did."""
        with self._lock:
            spans, self._spans = self._spans, defaultdict(list)
        return dict(spans)

    def take_info(self, counted: Collection[int] = (), done: int = 0) -> InfoTotals:
        """Take the numbers in `info`: all, but at places in `counted` only in the first `done` updates."""
        kept = set(counted)
        with self._lock:
            reported, self._info = self._info, []
            taken: InfoTotals = {}
            for place, update, info in reported:
                if place in kept and update > done:
                    self._info.append((place, update, info))
                else:
                    merge_totals(taken, info)
            return taken

    def _cut(self, place: int, first: int, count: int) -> list[ReplicaReport]:
        """The rows of these updates as one report; rows that were lost with their process are zero."""
        rows, self._rows[place] = self._rows[place], []
        out: ReplicaReport = {}
        for begin, n, report in rows:
            if begin + n > first + count:  # the rest is for the next call
                keep = max(begin, first + count)
                self._rows[place].append((keep, begin + n - keep, _slice_updates(report, keep - begin, n)))
            a, b = max(begin, first), min(begin + n, first + count)
            if a >= b:
                continue
            for slot, value in _slice_updates(report, a - begin, b - begin).items():
                if slot not in out:
                    out[slot] = jax.tree.map(lambda x: np.zeros((x.shape[0], count, *x.shape[2:]), x.dtype), value)
                jax.tree.map(lambda x, new, a=a, b=b: _fill(x, new, a - first, b - first), out[slot], value)
        return [out] if out else []


def _fill(x: np.ndarray, new: np.ndarray, a: int, b: int) -> None:
    x[:, a:b] = new


def _slice_updates(report: ReplicaReport, a: int, b: int) -> ReplicaReport:
    return jax.tree.map(lambda x: x[:, a:b], report)


def _rebuild(k: int, names: list[str], arrays: Arrays) -> ReplicaReport:
    """Report `k` of a message, from its leaves."""
    own = {name.partition("/")[2]: x for name, x in arrays.items() if name.partition("/")[0] == str(k)}
    metrics = dict.fromkeys(names, 0)
    like = {
        "report_env": Tally(0, 0, 0, 0),
        "report_grad": Learned(metrics, metrics, 0, 0),
        "report_apply": Guard(0, 0, 0),
    }
    return from_leaves(own, like)
