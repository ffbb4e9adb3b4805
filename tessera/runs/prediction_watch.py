"""A run beside its prediction: what is measured of it, whether it has drifted, and which plan would be better."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from tessera.algorithms.contract import Algorithm
from tessera.engines.replica.reports import Reports
from tessera.engines.simulated.prediction import Prediction
from tessera.errors import TesseraError
from tessera.graph.plan import Plan
from tessera.graph.plan_changes import refuse_change
from tessera.planning.planner import Planner
from tessera.runs.drift import DriftRule, DriftWindow, block_of
from tessera.runs.drift_words import drift_sentence
from tessera.runs.run_summary import rounded


class PredictionWatch:
    """Watches a run under one plan after the other."""

    def __init__(self, planner: Planner | None, replan: bool, algorithm: Algorithm, rule: DriftRule) -> None:
        self._planner, self._replan, self._rule = planner, replan, rule
        self._replays = algorithm.store.persistent
        self.prediction: Prediction | None = None
        """That of the plan that runs, if there is one."""

    def begin(self, plan: Plan) -> None:
        """A run begins, or goes on under another plan."""
        self._plan = plan
        self.prediction = None if self._planner is None else self._planner.predict(plan)
        predicted = math.nan if self.prediction is None else self.prediction.steps_per_second
        self._window = DriftWindow(self._rule, plan, predicted)
        self._drifted = self._asked = self._compiled = False
        self._lags = [0.0, 0.0, 0.0]
        """Updates whose lag is known, the sum of their mean lags, the largest lag."""

    @property
    def steps_per_second(self) -> float:
        """The predicted speed; nan where nothing was predicted."""
        return math.nan if self.prediction is None else self.prediction.steps_per_second

    def note(self, reports: Reports, seconds: float) -> str:
        """Count a call of the engine, but the first, which compiles; what is to be said of a drift, once."""
        if not self._compiled:
            self._compiled = True
            return ""
        if (lag := reports.lag()) is not None:
            updates = len(reports.tally.steps)
            known, total, most = self._lags
            self._lags = [known + updates, total + updates * lag[0], max(most, lag[1])]
        complete = self._window.add(block_of(reports, seconds))
        if not complete or self._drifted or self.prediction is None or self._planner is None:
            return ""
        drift = self._window.drift()
        if drift is None:
            return ""
        self._drifted = True
        at = self._planner.profiled_at
        age = None if at is None else max(0.0, time.time() - at)
        return drift_sentence(drift, self.prediction, self._window.measured(), age)

    def better_plan(self) -> Plan | None:
        """The plan to go on under from a checkpoint; asked for once after a drift, where the user wants it."""
        if self._planner is None or not self._replan or not self._drifted or self._asked:
            return None
        self._asked = True
        found = self._planner.better(self._plan, self._window.measured())
        if found is not None:
            refuse_change(self._plan, found)
        return found

    def entries(self) -> dict[str, Any]:
        """Entries of summary.json: what was predicted, and what was measured beside it; null without a prediction."""
        if self.prediction is None:
            return {"predicted": None, "measured": None}
        known, total, most = self._lags
        whole = self._window.whole
        speed = whole.steps_per_second if whole.seconds else math.nan
        lag = (total / known, most) if known else None
        return {
            "predicted": _entry(self.steps_per_second, self._predicted_lag()),
            "measured": _entry(speed, lag),
        }

    def _predicted_lag(self) -> tuple[float, float] | None:
        """Mean and maximum, as `Reports.lag` counts them; None for rows of a replay, whose age is not predicted."""
        assert self.prediction is not None
        if self._replays:
            return None
        if not self._plan.asynchronous:
            return float(self._plan.lag), float(self._plan.lag)
        flows = [self.prediction.flows.get(stream) for stream in ("experience", "gradients", "updates")]
        return sum(f.lag_mean for f in flows if f), sum(f.lag_max for f in flows if f)


def check_replan(folder: Path | None, seeds: int | None) -> None:
    """Refuse `--replan` where a run could never move to another plan."""
    if folder is None:
        raise TesseraError("--replan moves at checkpoints, and without a run folder there are none: give --run-dir")
    if seeds is not None:
        raise TesseraError("--replan moves one run to a better plan: leave --seeds out")


def check_planner(planner: Planner | None) -> None:
    """Refuse `--replan` where nothing is predicted."""
    if planner is None:
        raise TesseraError(
            "--replan compares a run with its prediction, and no profile of this algorithm and environment is saved "
            "for this machine: take one first (tessera profile)"
        )


def _entry(speed: float, lag: tuple[float, float] | None) -> dict[str, float | None]:
    mean, most = (math.nan, math.nan) if lag is None else lag
    return {"steps_per_second": rounded(speed), "lag_mean": rounded(mean), "lag_max": rounded(most)}
