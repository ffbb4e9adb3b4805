"""Reports of each update, merged over replicas and devices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import jax
import numpy as np

from tessera.channels.link import Flow
from tessera.engines.replica.trace import Row
from tessera.envs.base import InfoTotals
from tessera.graph.plan import Plan
from tessera.program.accounting import Tally
from tessera.program.training_program import Guard, Learned

ReplicaReport = dict[str, Any]
"""A replica's reports of some updates, by slot: trees of [devices, updates, ...]."""


@dataclass(frozen=True)
class Reports:
    """A row per update: arrays with a leading axis over the updates of one call."""

    tally: Tally
    metrics: dict[str, np.ndarray]
    broken_at: dict[str, np.ndarray]
    """The gradient of an update at which each metric first was not finite."""
    guard: Guard
    lag_mean: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """Updates between the params that made the samples and the params that learned from them."""
    lag_max: np.ndarray = field(default_factory=lambda: np.zeros(0))
    flows: dict[str, Flow] = field(default_factory=dict)
    """What went through each cut stream."""
    waits: dict[str, dict[str, float]] = field(default_factory=dict)
    """Seconds in which replicas of each fragment, by its title, waited for each stream; empty where one thread runs all
    of them."""
    spans: dict[int, list[Row]] = field(default_factory=dict)
    """Samples of what the replica of each place did."""
    info: InfoTotals = field(default_factory=dict)
    """Sums of the numbers in the `info` of environments."""

    def lag(self) -> tuple[float, float] | None:
        """Mean and maximum of the updates between the params that played and those that a gradient was applied to.

        Samples trail behind the params that learn from them, and gradients, or updates that are added to one memory,
        behind those that they are applied to; the maxima of both are added too. None if nothing is known.
        """
        known = np.isfinite(self.lag_mean)
        if not known.any():
            return None
        applied = [self.flows.get(stream, Flow()) for stream in ("gradients", "updates")]
        mean = self.lag_mean[known].mean() + sum(flow.lag_mean for flow in applied)
        return float(mean), float(self.lag_max[known].max() + sum(flow.lag_max for flow in applied))


def merge_flows(parts: Iterable[dict[str, Flow]]) -> dict[str, Flow]:
    """What went through each stream, over all parts."""
    out: dict[str, Flow] = {}
    for part in parts:
        for stream, flow in part.items():
            out.setdefault(stream, Flow()).merge(flow)
    return out


def by_update(value: Any, count: int) -> Any:
    """A replica's report as NumPy arrays, [devices, updates, ...], whichever way its program made it."""
    if isinstance(value, list):  # composed on the host: one report per update
        rows = jax.device_get(value)
        return jax.tree.map(lambda *xs: np.stack(xs, axis=1), *rows)
    return jax.tree.map(lambda x: np.asarray(x)[:, :count], jax.device_get(value))


def split_info(report: ReplicaReport) -> InfoTotals:
    """Take what compiled environments tell of their steps out of a replica's report: sums over all of its updates."""
    tally = report.get("report_env")
    if tally is None or tally.info is None:
        return {}
    report["report_env"] = tally._replace(info=None)
    return {name: [float(total.sum()), int(count.sum())] for name, (total, count) in tally.info.items()}


def join_reports(reports: list[ReplicaReport]) -> list[ReplicaReport]:
    """Join consecutive reports of the same kind along their updates: a message with few arrays is cheaper."""
    joined = []
    for _, alike in groupby(reports, key=jax.tree.structure):
        joined.append(jax.tree.map(lambda *xs: np.concatenate(xs, axis=1), *alike))
    return joined


def collect_reports(plan: Plan, reports: dict[tuple[int, int], list[ReplicaReport]], count: int) -> Reports:
    """Merge the reports of all replicas, by fragment and number, into one row for each of `count` updates."""
    env = [report["report_env"] for own in reports.values() for report in own if "report_env" in report]
    learned = [
        (report["report_grad"], len(plan.fragments[i].held("grad")[r]))
        for (i, r), own in reports.items()
        for report in own
        if "report_grad" in report
    ]
    guards = [
        jax.tree.map(lambda *xs: np.concatenate(xs), *[jax.tree.map(lambda x: x[0], row) for row in rows])
        for own in reports.values()
        if (rows := [report["report_apply"] for report in own if "report_apply" in report])
    ]
    server = plan.fragments[plan.home("apply")]
    merged = merge_metrics([p for p, _ in learned], [w for _, w in learned], count)
    return Reports(
        merge_tallies(env, count),
        merged.mean,
        merged.broken_at,
        _merge_guards(guards, server.sharded or bool(server.agents)) if guards else Guard(*[np.zeros((0, 0))] * 3),
        merged.lag_mean,
        merged.lag_max,
    )


def merge_tallies(parts: list[Tally], count: int) -> Tally:
    """Merge [devices, updates] tallies of all replicas into [updates].

    Replicas that run at their own pace do not know which update a step belongs to: all count as the last one's.
    """
    if parts and all(p.steps.shape[1] == count for p in parts):
        return jax.tree.map(lambda *xs: np.concatenate(xs).sum(0), *parts)
    rows = Tally(*(np.zeros(count) for _ in range(4)))
    for part in parts:
        for row, x in zip(jax.tree.leaves(rows), jax.tree.leaves(part), strict=True):
            row[-1] += x.sum()
    return rows


def merge_metrics(parts: list[Learned], weights: list[int], count: int) -> Learned:
    """Average metrics over replicas, weighted by their groups; devices of one replica agree already."""
    if not parts:
        return Learned({}, {}, np.full(count, np.nan), np.full(count, np.nan))
    if not all(p.lag_mean.shape[1] == count for p in parts):  # own pace: one mean for all updates
        weights = [w * p.lag_mean.shape[1] for p, w in zip(parts, weights, strict=True)]
        parts = [
            Learned(
                {k: np.repeat(v.mean(1, keepdims=True), count, 1) for k, v in p.mean.items()},
                {k: np.repeat(v.min(1, keepdims=True), count, 1) for k, v in p.broken_at.items()},
                np.repeat(p.lag_mean.mean(1, keepdims=True), count, 1),
                np.repeat(p.lag_max.max(1, keepdims=True), count, 1),
            )
            for p in parts
        ]
    normalised = np.asarray(weights) / sum(weights)

    def mean(values: list[np.ndarray]) -> np.ndarray:
        return np.tensordot(normalised, np.stack([v.mean(0) for v in values]), axes=1)

    return Learned(
        {name: mean([p.mean[name] for p in parts]) for name in parts[0].mean},
        {name: np.min([p.broken_at[name].min(0) for p in parts], axis=0) for name in parts[0].mean},
        mean([p.lag_mean for p in parts]),
        np.max([p.lag_max.max(0) for p in parts], axis=0),
    )


def _merge_guards(guards: list[Guard], sharded: bool) -> Guard:
    """Merge the guards of a server's shards (agents count as shards), or of peers; NaN and infinity stay."""
    if len(guards) == 1:
        return guards[0]
    rows = min(len(g.params) for g in guards)
    cut = [jax.tree.map(lambda x: x[:rows], g) for g in guards]
    if sharded:
        return cut[0]._replace(params=np.sum([g.params for g in cut], axis=0))
    return Guard(
        np.mean([g.gradients for g in cut], axis=0),
        np.min([g.broken_at for g in cut], axis=0),
        np.mean([g.params for g in cut], axis=0),
    )
