"""Predictions that can be worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tessera import A2C, DQN, TesseraError
from tessera.engines.replica.replica import make_training
from tessera.engines.serial import SerialEngine
from tessera.engines.simulated.costs import (
    Costs,
    ExchangeCosts,
    LinkCosts,
    Timing,
    Work,
    interpolated,
    node_name,
    with_threads,
)
from tessera.engines.simulated.engine import Prediction, SimulatedEngine
from tessera.engines.simulated.programs import work_in
from tessera.engines.simulated.virtual_time import Cores, Device, VirtualTime
from tessera.planning.prepare import prepare_plan
from tessera.program.compile import merge_segments
from tessera.program.project import project

QUEUE = A2C(unroll=4, widths=(8,))
REPLAY = DQN(n_step=1, unroll=4, draws=2, batch=16, capacity=512, warmup=2, widths=(8,))
ACTING, LEARNING = "act observed -> actions", "grad batch+summary -> gradients"
APPLYING = "apply gradients+squares -> state"


def costs(acting: float = 0.0, learning: float = 0.0, applying: float = 0.0, **more: Any) -> Costs:
    """Seconds of a step of all 8 environments, a gradient and applying it; only acting grows with environments."""
    ops = {ACTING: ((1, acting / 8), (8, acting)), LEARNING: ((8, learning),), APPLYING: ((8, applying),)}
    return Costs(ops, **more)


def predict(policy: str, given: Costs, cores: int = 64, algorithm: Any = QUEUE, **options: Any) -> Prediction:
    planned = prepare_plan(algorithm, "gymnax:CartPole-v1", policy, envs=8, groups=8, **options)
    bound, env, plan = planned
    return SimulatedEngine(plan, bound, env, given, cores).run(40)


def seconds(prediction: Prediction) -> float:
    """Of one update."""
    return 1 / prediction.updates_per_second


def test_one_program_takes_the_sum_of_its_costs():
    found = predict("fused:devices=1", costs(acting=0.5, learning=3.0, applying=1.0))
    assert seconds(found) == pytest.approx(4 * 0.5 + 3.0 + 1.0)
    assert found.steps_per_second == pytest.approx(4 * 8 / 6.0)
    assert found.busy == {"env+act+store+grad+apply": pytest.approx(1.0)}
    assert seconds(predict("fused:devices=1", costs(acting=0.5, dispatch=40.0))) == pytest.approx(2.0 + 40.0 / 40)


NORMALISING = replace(QUEUE, normalise_observations=True)
ABSORBING = "apply gradients+squares+summary"
"""Where gradients are applied together, and statistics come in the summary: so are the programs of a profile."""


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("multi_learner:learners=2", 1.0 + 3.0 + 1.0),
        ("central:workers=2,mode=async", (1.0 + 3.0) / 2),  # each gradient is an update, and brings statistics
        ("hogwild:workers=2", 1.0 + 3.0 + 1.0),
    ],
)
def test_costs_hold_wherever_statistics_come_from(policy, expected):
    given = Costs({ACTING: ((8, 0.25),), LEARNING: ((8, 3.0),), f"{ABSORBING} -> state": ((8, 1.0),)})
    lag = 0 if "async" not in policy else None
    assert seconds(predict(policy, given, algorithm=NORMALISING, lag=lag)) == pytest.approx(expected)


def test_applying_is_the_same_work_for_any_number_of_environments():
    timed = {"apply gradients -> squares; apply gradients+squares -> state; apply -> view": (
        Timing(1, 1, (Work(1.0, 1.0),)), Timing(2, 1, (Work(1.5, 1.5),)),
    )}  # fmt: skip
    for given in (Costs({APPLYING: ((1, 1.0), (2, 1.5))}), Costs(timings=timed)):
        assert seconds(predict("central:workers=2", given, lag=0)) == pytest.approx(1.0)


def test_timed_segments_hold_wherever_statistics_come_from():
    timed = {f"apply gradients -> squares; {ABSORBING} -> state; apply -> view": (Timing(8, 1, (Work(1.5, 1.5),)),)}
    found = predict("central:workers=2,mode=async", costs(learning=0.5, timings=timed), algorithm=NORMALISING)
    assert seconds(found) == pytest.approx(1.5)  # two workers are faster than the server


ALL_WORK = costs(acting=0.5, learning=3.0, applying=1.0)


@pytest.mark.parametrize(
    ("policy", "lag", "expected"),
    [
        ("single_learner_coarse:actors=2", 0, 1.0 + 4.0),  # each actor has half of the environments
        ("single_learner_coarse:actors=2", 1, 4.0),  # acting hides behind learning
        ("single_learner_coarse:actors=2,mode=async", None, 4.0),
        ("single_learner_coarse:actors=2,mode=first,first=1", None, 1.0 + 4.0),
        ("fused:devices=2", 0, 1.0 + 4.0),
        ("multi_learner:learners=2", 0, 1.0 + 3.0 + 1.0),
        ("central:workers=2", 0, 1.0 + 3.0 + 1.0),
        ("central:workers=2,mode=async", None, (1.0 + 3.0) / 2),  # each gradient is an update
        ("single_learner_fine:actors=2", 0, 2.0 + 4.0),  # the learner acts for all
        ("split_inference:workers=2", 0, 2.0 + 4.0),
        ("decentralised:workers=2", None, 5.0),
        ("averaging:workers=2", 0, 5.0),
        ("hogwild:workers=2", 0, 5.0),
    ],
)
def test_each_discipline_waits_as_it_should(policy, lag, expected):
    assert seconds(predict(policy, ALL_WORK, lag=lag)) == pytest.approx(expected, rel=0.03)


def test_what_costs_more_becomes_the_bottleneck():
    policy = "single_learner_coarse:actors=4,mode=async"
    learning = predict(policy, costs(acting=2.0, learning=3.0, applying=1.0))
    assert learning.bottleneck == "store+grad+apply"
    assert seconds(learning) == pytest.approx(4.0, rel=0.01)
    acting = predict(policy, costs(acting=6.0, learning=3.0, applying=1.0))
    assert acting.bottleneck == "env+act"
    assert seconds(acting) == pytest.approx(6.0, rel=0.01)  # 4 steps of 2 environments
    assert learning.busy["env+act"] == pytest.approx(0.5, rel=0.05)


def test_a_dearer_message_changes_which_plan_is_faster():
    """One message of experience to the learner and one of params back, or four of timesteps and actions each."""
    cheap = costs(acting=0.5, learning=1.0, links=LinkCosts(latency=0.001))
    dear = costs(acting=0.5, learning=1.0, links=LinkCosts(latency=1.0))
    coarse, fine = "single_learner_coarse:actors=2", "single_learner_fine:actors=2"
    assert seconds(predict(coarse, cheap)) == pytest.approx(1.0 + 1.0 + 0.002, rel=0.01)
    assert seconds(predict(fine, cheap)) == pytest.approx(2.0 + 1.0 + 0.008, rel=0.01)
    assert seconds(predict(coarse, dear)) == pytest.approx(1.0 + 1.0 + 2.0, rel=0.01)
    assert seconds(predict(fine, dear)) == pytest.approx(2.0 + 1.0 + 8.0, rel=0.01)


def test_more_threads_than_cores_share_them():
    work = costs(acting=4.0, learning=1.0, applying=1.0)
    assert seconds(predict("single_learner_coarse:actors=4", work)) == pytest.approx(4.0 + 2.0)
    assert seconds(predict("single_learner_coarse:actors=4", work, cores=2)) == pytest.approx(8.0 + 2.0)
    assert seconds(predict("single_learner_coarse:actors=4", work, cores=1)) == pytest.approx(16.0 + 2.0)


def test_experience_gets_as_old_as_queues_and_bounds_let_it():
    slow_learner = costs(acting=0.1, learning=3.0)
    synchronous = predict("single_learner_coarse:actors=2", slow_learner, lag=2).flows["experience"]
    assert (synchronous.lag_mean, synchronous.lag_max) == (2, 2)
    for lag in (1, 4):
        bounded = predict(f"single_learner_coarse:actors=2,mode=async,lag={lag}", slow_learner).flows["experience"]
        assert bounded.lag_max <= lag
    # two messages of each actor wait, and a third is ready to be sent
    assert predict("single_learner_coarse:actors=2,mode=async", slow_learner).flows["experience"].lag_mean == 3
    taken = predict("single_learner_coarse:actors=4,mode=async,take=2", slow_learner).flows["experience"]
    assert taken.lag_mean == pytest.approx(12, abs=1)  # the same, of 8 groups, 2 at a time


def test_an_actor_that_was_held_up_finds_the_params_that_were_sent_before_it_was_let_go():
    work = {"send acting": ExchangeCosts(fixed=0.25), "receive experience": ExchangeCosts(fixed=0.05)}
    given = replace(costs(acting=0.1, learning=3.0), exchanges=work)
    assert predict("single_learner_coarse:actors=2,mode=async", given).flows["experience"].lag_mean == 3


def test_a_learner_that_no_actor_reads_params_of_counts_lag_as_the_others_do():
    """Both learners take a half of each of the actor's unrolls: two messages wait, and a third is ready to be sent."""
    found = predict("multi_learner_coarse:actors=1,learners=2,mode=async", costs(acting=0.1, learning=3.0))
    assert found.lags["experience"] == {3: 2 * 40}
    bounded = predict("multi_learner_coarse:actors=1,learners=2,mode=async,lag=1", costs(acting=0.1, learning=3.0))
    assert set(bounded.lags["experience"]) <= {0, 1}


@pytest.mark.parametrize(
    "policy", ["single_learner_coarse:actors=2", "single_learner_fine:actors=2", "central:workers=2", "multi_learner"]
)
def test_streams_carry_what_they_carry_in_a_real_run(policy):
    bound, env, plan = prepare_plan(QUEUE, "gymnax:CartPole-v1", policy, envs=8, groups=8, lag=0, engine="serial")
    engine = SerialEngine(plan, bound, env, seed=0, horizon=6)
    try:
        engine.start()
        for replica in engine.replicas:  # what resets have sent
            replica.port.take_flows()
        real = engine.advance(6).flows
    finally:
        engine.close()
    found = SimulatedEngine(plan, bound, env, ALL_WORK, 64).run(6, warmup=0).flows
    told = [{s: (f.messages, f.bytes, f.lag_max) for s, f in flows.items()} for flows in (found, real)]
    assert told[0] == told[1]


def test_copying_costs_by_the_byte():
    dear = costs(acting=0.5, learning=3.0, applying=1.0, links=LinkCosts(cpu_per_byte=1e-4))
    assert seconds(predict("single_learner_coarse:actors=2", dear)) > seconds(
        predict("single_learner_coarse:actors=2", ALL_WORK)
    )


def test_exchanges_cost_what_their_kind_does_at_each_end():
    work, policy = {"acting": 0.5, "learning": 3.0, "applying": 1.0}, "single_learner_coarse:actors=2"
    before = seconds(predict(policy, costs(**work)))
    sent = {"send experience": ExchangeCosts(fixed=0.25), "receive experience": ExchangeCosts(per_link=0.125)}
    # each actor sends once, at the same time as the other, and the learner takes two messages
    after = seconds(predict(policy, costs(**work, exchanges=sent)))
    assert after - before == pytest.approx(0.25 + 2 * 0.125)


def test_what_comes_first_after_a_wait_takes_longer_and_what_follows_does_not():
    work, policy = {"acting": 0.5, "learning": 3.0, "applying": 1.0}, "single_learner_coarse:actors=2"
    before = seconds(predict(policy, costs(**work)))
    # a learner waits once in an update, and an actor too: each sends once, so that each time is the first
    more = {"send acting": 0.25, "receive experience": 0.125, "send gradients": 7.0}
    assert seconds(predict(policy, costs(**work, after_wait=more))) - before == pytest.approx(0.25 + 0.125)
    # where nobody waits nothing is the first, but for the very first update
    assert seconds(predict("fused:devices=1", costs(**work, after_wait=more))) == pytest.approx(
        seconds(predict("fused:devices=1", costs(**work)))
    )


def test_waking_a_replica_takes_longer_while_all_cores_are_busy():
    work, policy = {"acting": 0.5, "learning": 3.0, "applying": 1.0}, "single_learner_coarse:actors=2"
    free, busy = costs(**work, wake=0.125), costs(**work, wake=0.125, switch=0.25)
    # of two actors on one core the second is woken while the first works, and the learner while the second still does
    assert seconds(predict(policy, busy, cores=1)) - seconds(predict(policy, free, cores=1)) == pytest.approx(2 * 0.25)
    assert seconds(predict(policy, busy)) == pytest.approx(seconds(predict(policy, free)))  # there are cores enough


@pytest.mark.parametrize("policy", ["distributed_replay:actors=2,stores=2,mode=async", "gorila", "mirrored:workers=2"])
def test_replays_are_simulated_too(policy):
    found = predict(policy, costs(acting=0.1, learning=1.0, applying=0.5), algorithm=REPLAY)
    assert found.steps_per_second > 0
    if policy.startswith("distributed"):
        assert seconds(found) == pytest.approx(2 * 1.5, rel=0.05)  # two draws, and the learner never waits


def test_a_seed_is_not_needed_the_same_is_predicted_twice():
    policy = "single_learner_coarse:actors=3,mode=async,take=2"
    assert predict(policy, ALL_WORK) == predict(policy, ALL_WORK)


def test_cores_are_shared_in_equal_parts_and_devices_serve_in_order():
    time, ends = VirtualTime(), {}
    cores, device = Cores(time, 2), Device(time)
    for name, work in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
        cores.run(work, lambda name=name: ends.update({name: time.now}))
        device.run(work, lambda name=name: ends.update({f"device {name}": time.now}), 0)
    while time.step():
        pass
    # three share two cores until a is done at 1.5; then b and c have one each
    assert ends == {"a": 1.5, "b": 2.5, "c": 3.5, "device a": 1.0, "device b": 3.0, "device c": 6.0}


def test_a_device_turns_from_process_to_process_which_takes_time():
    time, ends = VirtualTime(), []
    device = Device(time, switch=Costs(device_switches=((2, 0.25), (4, 0.125))).device_switch)
    for process in (0, 0, 1, 0):
        device.run(1.0, lambda: ends.append(time.now), process)
    while time.step():
        pass
    assert ends == [1.0, 2.0, 3.25, 4.5]
    device.run(1.0, lambda: ends.append(time.now), 2)  # now three of them share it
    device.run(1.0, lambda: ends.append(time.now), 3)
    while time.step():
        pass
    assert ends[4:] == [4.5 + 1.1875, 4.5 + 1.1875 + 1.125]


def test_what_it_takes_to_turn_lies_between_two_measured_numbers_and_stays_beyond_them():
    costs = Costs(device_switches=((2, 0.25), (8, 0.125)))
    assert [costs.device_switch(n) for n in (1, 2, 5, 8, 64)] == [0.25, 0.25, 0.1875, 0.125, 0.125]
    assert Costs().device_switch(3) == 0.0


@pytest.mark.parametrize(
    ("ops", "switch", "expected"),
    [
        ({}, 0.0, 4 * (4.0 + 4.0)),  # nothing says which part a device does: all of it
        ({ACTING: ((8, 1.0),)}, 0.0, 4 * 4.0 + 1.0),  # 3 s of a core, then 1 s of the device; one is always ahead
        ({ACTING: ((8, 1.0),)}, 0.5, 4 * 4.5 + 1.5),  # it turns to the other one at each call
        ({ACTING: ((8, 3.0),)}, 0.0, 4 * 3.0 * 2 + 1.0),  # 1 s of a core, then they wait for each other
    ],
)
def test_a_core_gives_a_device_its_work_while_it_works_for_others(ops, switch, expected):
    """Two actors on one device; each takes four steps of 4 s for an update."""
    bound, env, plan = prepare_plan(QUEUE, "CartPole-v1", "single_learner_coarse:actors=2", envs=8, groups=8, lag=0)
    plan = replace(plan, fragments=tuple(replace(f, platform="gpu") for f in plan.fragments))
    timings = {"act observed -> actions": (Timing(4, 1, (Work(4.0, 4.0),)),)}
    given = Costs(ops=ops, timings=timings, device_switches=((2, switch),))
    found = SimulatedEngine(plan, bound, env, given, 4, 1).run(1)
    assert seconds(found) == pytest.approx(expected)


def test_costs_between_two_measured_ones_lie_on_a_line():
    curve = ((2, 1.0), (4, 2.0), (8, 2.5))
    assert [interpolated(curve, n) for n in (1, 2, 3, 6, 8, 16)] == [1.0, 1.0, 1.5, 2.25, 2.5, 5.0]
    assert interpolated((), 4) == 0
    assert interpolated(((8, 3.0),), 1) == 3.0


def test_costs_that_cannot_be_used_are_refused():
    with pytest.raises(TesseraError, match="unknown Op in the costs 'act observed -> action': did you mean"):
        predict("fused:devices=1", Costs({"act observed -> action": ((1, 1.0),)}))
    with pytest.raises(TesseraError, match="costs nothing"):
        predict("fused:devices=1", Costs())


def timed(plan_of: str, env: str, seconds: dict[str, tuple[float, float]], **options: Any) -> Prediction:
    """Predict from whole calls: a part of a name -> what each call of such a node takes, and how long cores work."""
    bound, environment, plan = prepare_plan(QUEUE, env, plan_of, envs=8, groups=8, **options)
    training = make_training(plan, bound, environment)
    timings = {}
    for i in range(len(plan.fragments)):
        for node in work_in(merge_segments(project(training.updates(), plan, i))):
            for part, work in seconds.items():
                if part in node_name(node):
                    timings[node_name(node)] = (Timing(8, 1, (Work(*work),)), Timing(4, 1, (Work(*work),)))
    return SimulatedEngine(plan, bound, environment, Costs(timings=timings), 2).run(40)


STEPPING, UPDATING = "env actions -> timesteps", "grad batch+summary -> gradients"


def test_a_host_environment_waits_for_the_update_also_if_acting_lags_because_programs_run_in_order():
    work = {STEPPING: (1.0, 1.0), UPDATING: (3.0, 3.0)}  # 4 steps and 1 gradient
    assert seconds(timed("fused:devices=1", "CartPole-v1", work, lag=0)) == pytest.approx(4.0 + 3.0)
    assert seconds(timed("fused:devices=1", "CartPole-v1", work, lag=1)) == pytest.approx(4.0 + 3.0)


def test_what_sleeps_needs_no_core_and_what_has_threads_needs_several():
    actors = "single_learner_coarse:actors=4"
    assert seconds(timed(actors, "CartPole-v1", {STEPPING: (1.0, 1.0)}, lag=0)) == pytest.approx(4 * 4 / 2)
    assert seconds(timed(actors, "CartPole-v1", {STEPPING: (1.0, 0.0)}, lag=0)) == pytest.approx(4.0)
    assert seconds(timed(actors, "CartPole-v1", {STEPPING: (1.0, 0.5)}, lag=0)) == pytest.approx(4 * 1.5)
    assert seconds(timed("multi_learner:learners=2", "CartPole-v1", {UPDATING: (1.0, 2.0)}, lag=0)) == pytest.approx(
        2.0
    )


def test_the_slowest_of_several_decides_where_all_are_waited_for():
    """Steps of 0 or 1 second, each half of the time: one actor needs 2 for four steps, the slower of two more."""
    bound, env, plan = prepare_plan(QUEUE, "CartPole-v1", "single_learner_coarse:actors=2", envs=8, groups=8, lag=0)
    calls = (Work(0.0, 0.0), Work(1.0, 0.0))
    given = Costs(timings={STEPPING: (Timing(4, 1, calls), Timing(8, 1, calls))})
    found = seconds(SimulatedEngine(plan, bound, env, given, 2).run(2000))
    chances = [math.comb(4, k) / 16 for k in range(5)]
    expected = sum(max(a, b) * chances[a] * chances[b] for a in range(5) for b in range(5))
    assert found == pytest.approx(expected, rel=0.03)


def test_calls_are_interpolated_by_environments_and_threads():
    def calls(envs: int, threads: int) -> float:
        points = (
            Timing(8, 1, (Work(8.0, 8.0),)),
            Timing(16, 1, (Work(12.0, 12.0),)),
            Timing(16, 4, (Work(6.0, 20.0),)),
        )
        return with_threads(points, envs, threads)[0].seconds

    assert [calls(8, 1), calls(16, 1), calls(12, 1), calls(32, 1)] == [8.0, 12.0, 10.0, 20.0]
    assert calls(16, 4) == 6.0
    assert calls(16, 2) == pytest.approx(12.0 - 6.0 * (1 - 1 / 2) / (1 - 1 / 4))
    assert calls(16, 8) == 6.0


def test_python_takes_time_between_two_nodes():
    bound, env, plan = prepare_plan(QUEUE, "CartPole-v1", "fused:devices=1", envs=8, groups=8, lag=0)
    found = SimulatedEngine(plan, bound, env, Costs(per_node=1.0), 2).run(40)
    nodes = 1 + 1 + 4 * 3 + 1  # an empty tally, keys, 4 x (acting, stepping, counting), the update
    assert seconds(found) == pytest.approx(nodes)


def test_waking_a_replica_takes_a_core():
    """One replica steps and one acts: at each of 4 steps both are woken."""
    bound, env, plan = prepare_plan(
        QUEUE, "gymnax:CartPole-v1", "single_learner_fine:actors=1", envs=8, groups=8, lag=0
    )
    given = replace(costs(acting=1.0), wake=0.25)
    found = seconds(SimulatedEngine(plan, bound, env, given, 2).run(40))
    assert found == pytest.approx(4 * (1.0 + 2 * 0.25), rel=0.15)  # in turn; both are woken at every step
    assert seconds(SimulatedEngine(plan, bound, env, costs(acting=1.0), 2).run(40)) == pytest.approx(4.0)
