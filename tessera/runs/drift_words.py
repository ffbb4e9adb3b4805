"""What a run says of its drift from the prediction: one sentence, with what changed as far as that can be told."""

from __future__ import annotations

from tessera.engines.simulated.prediction import Prediction
from tessera.planning.planner import Measured
from tessera.support.machine import cores

CHANGED = 1.15
"""How many times as long as predicted work must take to count as changed."""
LOADED = 0.25
"""Cores that others keep busy, from which on they count."""
DAY = 86_400.0


def drift_sentence(drift: float, prediction: Prediction, measured: Measured, age: float | None) -> str:
    """What is said of a drift by this share; costs were measured `age` seconds ago, if they were."""
    side = "below" if drift < 0 else "above"
    profile = "" if age is None else f", by a profile of {ago(age)}"
    speeds = f"{measured.steps_per_second:,.0f} instead of {prediction.steps_per_second:,.0f}{profile}"
    causes = [_work(drift, prediction, measured), _load(drift, measured)]
    return f"steps/s {abs(drift):.0%} {side} the prediction ({speeds}): " + "; ".join(filter(None, causes))


def work_ratios(prediction: Prediction, measured: Measured) -> dict[str, float]:
    """How many times as long as predicted the replicas of each fragment work for an update, by its title."""
    found = {}
    for title, busy in measured.busy.items():
        if prediction.busy.get(title, 0.0) > 0 and busy > 0:
            predicted = prediction.busy[title] / prediction.updates_per_second
            found[title] = busy / measured.updates_per_second / predicted
    return found


def _work(drift: float, prediction: Prediction, measured: Measured) -> str:
    """Which work takes longer, or less long, than predicted; or what is waited for, if none does."""
    ratios = work_ratios(prediction, measured)
    if len(ratios) < 2:
        times = measured.updates_per_second and prediction.updates_per_second / measured.updates_per_second
        return f"an update takes {times:.1f} × as long as predicted"
    slower = drift < 0
    share = {title: prediction.busy[title] * (ratio - 1) for title, ratio in ratios.items()}
    title = (min, max)[slower](share, key=lambda name: share[name])
    if (ratios[title] > CHANGED) if slower else (ratios[title] < 1 / CHANGED):
        return f"{title} works {ratios[title]:.1f} × as long for an update as predicted"
    waited = max(measured.waits, key=lambda stream: measured.waits[stream], default=None)
    if slower and waited is not None:
        return f"no fragment works longer than predicted, and most waiting is for {waited}"
    return "no fragment works much longer or shorter than predicted: replicas wait for each other in another way"


def _load(drift: float, measured: Measured) -> str:
    if drift > 0 or measured.other_cores is None:
        return ""
    if measured.other_cores < LOADED:
        return "nothing else uses the cores"
    return f"other processes use {measured.other_cores:.1f} of {cores()} cores"


def ago(seconds: float) -> str:
    """How long ago something was, in the largest unit of which there is one."""
    for unit, size in (("day", DAY), ("hour", 3600.0), ("minute", 60.0)):
        if seconds >= size:
            count = int(seconds / size)
            return f"{count} {unit}{'s' * (count > 1)} ago"
    return "less than a minute ago"
