"""Loops in slices, worked out by hand: double-buffered environments, and acting for whichever are ready."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tessera import A2C, envs
from tessera.engines.replica.trace import merge_traces
from tessera.engines.simulated.cluster import Cluster, NodeKind
from tessera.engines.simulated.costs import Costs, Timing, Work
from tessera.engines.simulated.deployment import on_cluster
from tessera.engines.simulated.engine import SimulatedEngine
from tessera.engines.simulated.prediction import Prediction
from tessera.planning.prepare import prepare_plan

TURNS = 4
QUEUE = A2C(unroll=TURNS, widths=(8,))
ACTING, STEPPING = "act observed -> actions", "env actions -> timesteps"
LEARNING = "grad batch+summary -> gradients"


def threaded(name: str = "CartPole-v1") -> Any:
    """A host environment whose steps let other threads run."""
    env = envs.make(name)
    env.threaded = True
    return env


def constant(seconds: float, cpu_seconds: float | None = None, sizes: tuple[int, ...] = (1, 64)) -> tuple[Timing, ...]:
    """Calls that take as long for any number of environments."""
    work = Work(seconds, seconds if cpu_seconds is None else cpu_seconds)
    return tuple(Timing(size, 1, (work,)) for size in sizes)


def predict(
    policy: str, given: Costs, env: Any, cores: int = 2, size: int = 8, updates: int = 20, **options: Any
) -> Prediction:
    bound, made, plan = prepare_plan(QUEUE, env, policy, envs=size, groups=size, **{"lag": 0, **options})
    return SimulatedEngine(plan, bound, made, given, cores).run(updates)


def seconds(prediction: Prediction) -> float:
    """Of one update."""
    return 1 / prediction.updates_per_second


def in_halves(act: float, step: float, env: Any = None, cores: int = 2, threads: float = 1, **more: Any) -> float:
    """Seconds of an update with a gradient of 3 s, where acting and stepping take as long for any number."""
    timings = {ACTING: constant(act), STEPPING: constant(step, threads * step)}
    given = Costs(ops={LEARNING: ((8, 3.0),)}, timings=timings)
    return seconds(predict("fused:devices=1", given, env or threaded(), cores, **more))


def test_where_stepping_takes_longer_only_the_first_half_is_acted_for_while_nobody_steps():
    assert in_halves(act=1.0, step=2.0) == pytest.approx(1.0 + 2 * TURNS * 2.0 + 3.0)


def test_where_acting_takes_longer_only_the_last_half_steps_while_nobody_acts():
    assert in_halves(act=2.0, step=1.0) == pytest.approx(2 * TURNS * 2.0 + 1.0 + 3.0)


def test_environments_are_in_two_halves_only_where_they_are_on_other_engines():
    whole = pytest.approx(TURNS * (1.0 + 2.0) + 3.0)
    assert in_halves(act=1.0, step=2.0, env="CartPole-v1") == whole  # it keeps other threads from running
    assert in_halves(act=1.0, step=2.0, cores=1) == whole
    assert in_halves(act=1.0, step=2.0, size=1) == whole  # one group


def test_a_half_costs_what_as_many_environments_do():
    """Of 3 groups the first half is 1: steps of 1 s and 2 s in turn, behind the first act."""
    timings = {STEPPING: (Timing(1, 1, (Work(1.0, 1.0),)), Timing(3, 1, (Work(3.0, 3.0),)))}
    given = Costs(ops={LEARNING: ((8, 3.0),)}, timings={**timings, ACTING: constant(0.5)})
    assert seconds(predict("fused:devices=1", given, threaded(), size=3)) == pytest.approx(0.5 + TURNS * 3.0 + 3.0)


def test_a_step_with_threads_of_its_own_shares_the_cores_with_acting():
    """Three threads on two cores: while one half acts and the other steps, both take 1.5 s instead of 1 s."""
    assert in_halves(act=1.0, step=1.0, threads=2) == pytest.approx(1.0 + (2 * TURNS - 1) * 1.5 + 1.0 + 3.0)


def test_a_step_that_sleeps_needs_no_core():
    actors = "single_learner_coarse:actors=4"
    given = Costs(timings={STEPPING: constant(1.0, 0.0), ACTING: constant(0.25)})
    # four actors act for their first half on two cores: 0.5 s; then steps of 1 s hide all of it
    assert seconds(predict(actors, given, threaded())) == pytest.approx(0.5 + 2 * TURNS * 1.0)


def test_acting_waits_for_the_update_even_if_it_lags_because_a_device_runs_programs_in_order():
    assert in_halves(act=1.0, step=2.0, lag=1, cores=3) == in_halves(act=1.0, step=2.0, lag=0, cores=3)


def test_steps_in_a_thread_have_a_row_of_their_own_in_a_timeline(tmp_path):
    bound, env, plan = prepare_plan(QUEUE, threaded(), "fused:devices=1", envs=8, groups=8, lag=0)
    given = Costs(timings={ACTING: constant(1.0), STEPPING: constant(2.0)})
    SimulatedEngine(plan, bound, env, given, 2, trace=tmp_path / "trace").run(1, warmup=0)
    merge_traces(tmp_path / "trace")
    events = json.loads((tmp_path / "trace").read_text())["traceEvents"]
    rows = {(e["name"], e["tid"]) for e in events if e["ph"] == "X"}
    assert {("acting", 0), ("stepping", 1)} <= rows


def test_nodes_of_a_cluster_decide_by_their_own_cores():
    found = {}
    for cores in (1, 2):
        bound, env, plan = prepare_plan(
            QUEUE, threaded(), "single_learner_coarse:actors=1", envs=8, groups=8, engine="ray", lag=0
        )
        given = Costs(timings={ACTING: constant(1.0), STEPPING: constant(2.0)})
        deployment = on_cluster(plan, Cluster((NodeKind(count=2, cores=cores),)))
        found[cores] = seconds(SimulatedEngine(plan, bound, env, given, deployment=deployment).run(10))
    assert found == {1: pytest.approx(TURNS * 3.0), 2: pytest.approx(1.0 + 2 * TURNS * 2.0)}


SERVERS = "single_learner_fine:actors=2"
SLOW, FAST, ACT = 3.5, 1.0, 1.0


@pytest.mark.parametrize(
    ("wait", "expected"),
    [
        ("", TURNS * (ACT + SLOW)),
        (",wait=100", TURNS * (ACT + SLOW)),
        # Acted for: both at 0; the fast one at 2, 4 and 6. The slow one, ready at 4.5, has to wait until 5, and is then
        # never kept waiting: 5 + 3 x (1 + 3.5).
        (",wait=0", 5.0 + 3 * (ACT + SLOW)),
        # Both at 0. The fast one, ready at 2, at 3. The slow one, ready at 4.5, waits for the fast one: both at 5.
        # The fast one, ready at 7, at 8, and is done at 10. The slow one, ready at 9.5, waits until then: 10, 14.5.
        (",wait=1", 10.0 + 2 * (ACT + SLOW)),
    ],
)
def test_two_servers_of_which_one_is_slow(wait, expected):
    """Of 3 environments the slow server has 2; acting takes 1 s for any number."""
    given = Costs({ACTING: ((1, ACT),), STEPPING: ((1, FAST), (2, SLOW)), LEARNING: ((1, 2.0),)})
    found = predict(SERVERS + wait, given, "gymnax:CartPole-v1", cores=8, size=3)
    assert seconds(found) == pytest.approx(expected + 2.0)


def test_acting_costs_what_as_many_environments_as_are_ready_do():
    """Acting takes 1 s an environment, of which each server has 4: 8 s for both, which step in no time.

    With a wait of 0 both are acted for at first. When their actions have been sent, the first is acted for alone, and
    then again both in turn, 4 s each.
    """
    given = Costs({ACTING: ((1, 1.0), (8, 8.0)), LEARNING: ((1, 2.0),)})
    assert seconds(predict(SERVERS, given, "gymnax:CartPole-v1", cores=8)) == pytest.approx(TURNS * 8.0 + 2.0)
    assert seconds(predict(SERVERS + ",wait=0", given, "gymnax:CartPole-v1", cores=8)) == pytest.approx(
        TURNS * 8.0 + 2.0
    )


def uneven(wait: str, *calls: float, updates: int = 800) -> float:
    """Seconds of an update with two servers whose steps take one of these times, asleep."""
    works = tuple(Work(call, 0.0) for call in calls)
    given = Costs(timings={STEPPING: (Timing(1, 1, works), Timing(8, 1, works))})
    return seconds(predict(SERVERS + wait, given, "CartPole-v1", updates=updates))


def test_whoever_is_ready_does_not_wait_for_stragglers_at_each_step():
    """Steps of 0 or 1 second, each half of the time: the slower of two at each step, or the slower of two unrolls."""
    chances = [math.comb(TURNS, k) / 2**TURNS for k in range(TURNS + 1)]
    slower = sum(max(a, b) * p * q for a, p in enumerate(chances) for b, q in enumerate(chances))
    assert uneven("", 0.0, 1.0) == pytest.approx(TURNS * 0.75, rel=0.03)
    assert uneven(",wait=100", 0.0, 1.0) == pytest.approx(TURNS * 0.75, rel=0.03)
    assert uneven(",wait=0", 0.0, 1.0) == pytest.approx(slower, rel=0.03)


def test_where_no_step_is_a_straggler_waiting_for_all_is_as_good():
    assert uneven("", 1.0, updates=5) == pytest.approx(TURNS)
    assert uneven(",wait=0", 1.0, updates=5) == pytest.approx(TURNS)


TAIL = tuple(Work(0.001 * (1 + 20 / (k + 1)), 0.001) for k in range(64))


@pytest.mark.parametrize(
    ("policy", "groups"), [("single_learner_coarse:actors={n}", 2), ("single_learner_fine:actors={n},wait=0", 1)]
)
def test_some_nodes_stand_for_all(policy, groups):
    """Each server has two groups, or is answered alone; steps have a long tail."""
    replicas, found = 60, []
    for most in (10**6, 24):
        bound, env, plan = prepare_plan(
            QUEUE, threaded(), policy.format(n=replicas), envs=groups * replicas, groups=groups * replicas,
            engine="ray", lag=0,
        )  # fmt: skip
        timings = {STEPPING: (Timing(1, 1, TAIL),), ACTING: constant(0.0005, sizes=(1, 1024))}
        node = NodeKind(count=replicas // 4 + 2, cores=5)
        engine = SimulatedEngine(
            plan, bound, env, Costs(ops={LEARNING: ((1, 0.02),)}, timings=timings),
            deployment=on_cluster(plan, Cluster((node,)), most),
        )  # fmt: skip
        found.append(engine.run(12, 4))
    exact, sampled = found
    assert sampled.simulated < 0.6 * exact.simulated
    assert sampled.steps_per_second == pytest.approx(exact.steps_per_second, rel=0.05)
