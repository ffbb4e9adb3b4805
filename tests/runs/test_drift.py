"""When a run counts as drifted from its prediction, and what it says of that."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

import tessera
from tessera.channels.link import Flow
from tessera.engines.replica.reports import Reports
from tessera.engines.simulated.prediction import Prediction
from tessera.graph.plan import Plan
from tessera.planning.planner import Measured
from tessera.planning.prepare import prepare_plan
from tessera.program.accounting import Tally
from tessera.program.training_program import Guard
from tessera.runs import drift
from tessera.runs.drift import Block, DriftRule, DriftWindow, block_of
from tessera.runs.drift_words import ago, drift_sentence, work_ratios
from tessera.runs.prediction_watch import PredictionWatch
from tessera.support.load import CoreTimes
from tessera.support.machine import cores

ALGORITHM = tessera.A2C(unroll=8, widths=(8,))
RULE = DriftRule()


def plan_of(policy: str) -> Plan:
    return prepare_plan(ALGORITHM, "gymnax:CartPole-v1", policy, envs=8, groups=4)[2]


@pytest.fixture(autouse=True)
def unknown_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "core_times", lambda: None)


@pytest.fixture(scope="module")
def two() -> Plan:
    return plan_of("single_learner_coarse:actors=2")


@pytest.fixture(scope="module")
def one() -> Plan:
    return plan_of("fused:devices=1")


def window(plan: Plan, speeds: list[float], predicted: float = 1000.0) -> DriftWindow:
    """A window over blocks with these speeds."""
    found = DriftWindow(RULE, plan, predicted)
    for speed in speeds:
        assert found.add(Block(steps=int(3 * speed), updates=3, seconds=3.0))
    return found


def test_a_run_has_drifted_when_nine_of_ten_blocks_are_off_to_the_same_side(one):
    assert window(one, [600.0] * 10).drift() == pytest.approx(-0.4)
    assert window(one, [600.0] * 9 + [1000.0]).drift() == pytest.approx(-0.36)
    assert window(one, [1500.0] * 10).drift() == pytest.approx(0.5)
    assert window(one, [600.0] * 8 + [1000.0] * 2).drift() is None
    assert window(one, [600.0] * 9).drift() is None, "the window is not full"
    assert window(one, [600.0, 1400.0] * 5).drift() is None, "off to both sides"
    assert window(one, [1000.0] * 10 + [600.0] * 9).drift() == pytest.approx(-0.36), "the newest ten count"
    assert window(one, [760.0] * 10).drift() is None, "within a quarter"


def test_noise_around_the_edge_rarely_counts_and_around_the_prediction_never(one):
    rng = np.random.default_rng(0)

    def share(centre: float, spread: float) -> float:
        found = [window(one, list(centre * rng.lognormal(0, spread, 10))).drift() for _ in range(300)]
        return sum(d is not None for d in found) / len(found)

    assert share(1000.0, 0.3) == 0.0, "blocks that are a third off either way are noise"
    assert share(750.0, 0.1) < 0.05
    assert share(550.0, 0.1) > 0.95


def test_calls_are_joined_until_a_block_is_long_enough(one):
    found = DriftWindow(RULE, one, 1000.0)
    calls = [Block(steps=500, updates=1, seconds=0.5) for _ in range(6)]
    assert [found.add(call) for call in calls] == [False] * 5 + [True]
    assert found.add(Block(steps=1, updates=1, seconds=9.0)), "an update that takes longer is a block by itself"
    assert found.whole.steps == 3001


def test_the_cores_are_looked_at_only_where_a_block_is_off(one, monkeypatch):
    looked: list[int] = []

    def times() -> CoreTimes:
        looked.append(1)
        return CoreTimes(at=3.0 * len(looked), busy=6.0 * len(looked), own=3.0 * len(looked))

    monkeypatch.setattr(drift, "core_times", times)
    assert window(one, [1000.0] * 10).measured().other_cores is None
    assert not looked
    assert window(one, [500.0] * 10).measured().other_cores == pytest.approx(1.0)


def test_what_was_measured_is_by_fragment_where_each_has_processes_of_its_own(one, two):
    block = Block(steps=3000, updates=30, seconds=3.0, waits=Counter({"env+act": 3.0}), streams=Counter(params=3.0))
    measured = block.measured(two, None)  # two actors have 6 s, and wait for 3 of them
    assert measured.busy == {"env+act": pytest.approx(0.5), "store+grad+apply": 1.0}
    assert measured.waits == {"params": pytest.approx(1.0)}
    assert (measured.steps_per_second, measured.updates_per_second) == (1000.0, 10.0)
    assert block.measured(one, None).busy == {}


def prediction(busy: dict[str, float], flows: dict[str, Flow] | None = None) -> Prediction:
    return Prediction(2000.0, 20.0, busy, flows or {})


def test_a_drift_is_said_with_the_work_that_takes_longer():
    """An update took 50 ms, of which actors worked 25 ms; now it takes 100 ms, of which they work 75 ms."""
    predicted = prediction({"env+act": 0.5, "store+grad+apply": 1.0})
    measured = Measured(
        steps_per_second=1000.0,
        updates_per_second=10.0,
        busy={"env+act": 0.75, "store+grad+apply": 0.5},
        other_cores=1.26,
    )
    assert work_ratios(predicted, measured) == {"env+act": pytest.approx(3.0), "store+grad+apply": pytest.approx(1.0)}
    assert drift_sentence(-0.5, predicted, measured, 3.2 * 86_400) == (
        "steps/s 50% below the prediction (1,000 instead of 2,000, by a profile of 3 days ago): env+act works 3.0 × "
        f"as long for an update as predicted; other processes use 1.3 of {cores()} cores"
    )


def test_a_drift_is_said_with_what_is_waited_for_where_no_work_takes_longer():
    predicted = prediction({"env+act": 0.5, "store+grad+apply": 1.0})
    measured = Measured(
        steps_per_second=1000.0, updates_per_second=10.0, busy={"env+act": 0.25, "store+grad+apply": 0.5},
        waits={"params": 1.2, "experience": 0.7}, other_cores=0.1,
    )  # fmt: skip
    assert drift_sentence(-0.5, predicted, measured, None) == (
        "steps/s 50% below the prediction (1,000 instead of 2,000): no fragment works longer than predicted, and most "
        "waiting is for params; nothing else uses the cores"
    )


def test_a_drift_of_one_thread_is_that_of_an_update():
    fast = Measured(steps_per_second=3000.0, updates_per_second=30.0)
    assert drift_sentence(0.5, prediction({"all": 1.0}), fast, 30.0) == (
        "steps/s 50% above the prediction (3,000 instead of 2,000, by a profile of less than a minute ago): "
        "an update takes 0.7 × as long as predicted"
    )
    assert (ago(60.0), ago(7200.0), ago(86_400.0)) == ("1 minute ago", "2 hours ago", "1 day ago")


class Given:
    """A planner with one prediction."""

    profiled_at = None

    def __init__(self, found: Prediction) -> None:
        self.found = found

    def predict(self, plan: Plan) -> Prediction | None:
        return self.found

    def better(self, plan: Plan, measured: Measured) -> Plan | None:
        raise AssertionError("nobody asks before a drift, or without --replan")


def reports(steps: int, lag: float = math.nan, gradients: float = 0.0) -> Reports:
    """Reports of one update."""
    none = np.zeros(1)
    flows = {"gradients": Flow(lag_sum=gradients, lags=1, wait_seconds=0.25)} if gradients else {}
    return Reports(
        Tally(none, none, none, np.asarray([steps])), {}, {}, Guard(none, none, none), np.asarray([lag]),
        np.asarray([lag]), flows, {"env+act": {"gradients": 0.5}},
    )  # fmt: skip


def test_a_call_of_the_engine_is_a_block_with_its_waits():
    assert block_of(reports(64, 1.0, 2.0), 0.5) == Block(64, 1, 0.5, Counter({"env+act": 0.5}), Counter(gradients=0.25))


def test_the_first_call_compiles_and_is_left_out_and_a_drift_is_said_once(one):
    watch = PredictionWatch(Given(prediction({"all": 1.0})), False, ALGORITHM, RULE)
    watch.begin(one)
    assert watch.note(reports(1), 100.0) == ""
    said = [watch.note(reports(3000, lag=k % 2), 3.0) for k in range(20)]
    assert [bool(text) for text in said] == [False] * 9 + [True] + [False] * 10
    assert watch.better_plan() is None
    assert watch.entries() == {
        "predicted": {"steps_per_second": 2000.0, "lag_mean": 0.0, "lag_max": 0.0},
        "measured": {"steps_per_second": 1000.0, "lag_mean": 0.5, "lag_max": 1.0},
    }


def test_the_predicted_lag_is_that_of_experience_and_gradients_where_replicas_do_not_wait():
    flows = {"experience": Flow(lag_sum=6.0, lags=4, lag_max=3.0), "gradients": Flow(lag_sum=1.0, lags=2, lag_max=1.0)}
    watch = PredictionWatch(Given(prediction({}, flows)), False, ALGORITHM, RULE)
    watch.begin(plan_of("central:workers=2,mode=async"))
    assert watch.entries()["predicted"] == {"steps_per_second": 2000.0, "lag_mean": 2.0, "lag_max": 4.0}
    assert watch.entries()["measured"] == {"steps_per_second": None, "lag_mean": None, "lag_max": None}


def test_without_a_prediction_there_is_nothing_to_compare(one):
    watch = PredictionWatch(None, False, ALGORITHM, RULE)
    watch.begin(one)
    assert [watch.note(reports(3000), 3.0) for _ in range(12)] == [""] * 12
    assert watch.entries() == {"predicted": None, "measured": None}
