"""What a profile is made of: probes, fits, files."""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest

from tessera import A2C, DQN, TesseraError
from tessera.cli.main import main
from tessera.engines.replica.replica import make_training
from tessera.engines.simulated.costs import Costs, ExchangeCosts, LinkCosts, Timing, Work, node_name, op_name, ops_in
from tessera.engines.simulated.engine import SimulatedEngine
from tessera.engines.simulated.machine import Machine
from tessera.engines.simulated.programs import work_in
from tessera.graph.policy import Fragment, Policy
from tessera.planning.prepare import prepare_plan
from tessera.profiling import profile as profiles
from tessera.profiling import take
from tessera.profiling.findings import (
    Findings,
    alone,
    exchange_costs,
    kind_factors,
    link_costs,
    make_costs,
)
from tessera.profiling.measurements import (
    OPS,
    WHOLE,
    Measurements,
    measurements_from_json,
    measurements_to_json,
    probe_name,
)
from tessera.profiling.op_timing import OpTimer
from tessera.profiling.probe import ExchangeTime, Probed, ProbeJob, probe, probed_from_json, probed_to_json
from tessera.profiling.probers import Prober, in_words, probe_in_turns
from tessera.profiling.profile import Profile, changes, find_profile, path_of, read_profile, save_profile
from tessera.profiling.stopwatch import FirstCalls, TimedCall, undisturbed
from tessera.profiling.trial_run import MOST_UPDATES, TrialRun, timed_updates, trial_run
from tessera.profiling.tried_plans import SPLITS, in_one, in_two, replan, split_plans, trial_plans
from tessera.program.compile import merge_segments
from tessera.program.nodes import HOST, Op, Recv
from tessera.program.project import project

SMALL = A2C(unroll=4, widths=(8,))
REPLAY = DQN(n_step=1, unroll=4, draws=2, batch=16, capacity=512, warmup=4, widths=(8,))


@pytest.fixture(scope="module")
def planned() -> Any:
    return prepare_plan(SMALL, "CartPole-v1", None, envs=8, groups=8)


@pytest.mark.parametrize(
    ("algorithm", "env", "policy"),
    [
        (SMALL, "CartPole-v1", "single_learner_coarse:actors=2"),
        (SMALL, "gymnax:CartPole-v1", "multi_learner:learners=2"),
        (REPLAY, "gymnax:CartPole-v1", "single_learner_fine:actors=2"),
    ],
)
def test_a_probe_times_every_segment_and_host_op_of_its_plan(algorithm, env, policy):
    bound, environment, plan = prepare_plan(algorithm, env, policy, envs=8, groups=8)
    found = probed_from_json(json.loads(json.dumps(probed_to_json(probe(plan, bound, environment, 1)))))
    training = make_training(plan, bound, environment)
    for i, placed in enumerate(plan.fragments):
        plays = bool({"env", "act"} & set(placed.operators))
        envs = len(placed.held("act" if plays else "grad")[0])
        for node in work_in(merge_segments(project(training.updates(), plan, i))):
            assert {t.envs for t in found.timings[node_name(node)]} == {envs}
    assert all(w.seconds >= 0 for points in found.timings.values() for t in points for w in t.calls)
    assert {e.links for e in found.exchanges} <= {1, 2}
    assert all(e.seconds > 0 for e in found.exchanges)
    assert any(e.nbytes for e in found.exchanges)
    assert {e.name.partition(" ")[2] for e in found.exchanges} == {channel.slot for channel in plan.channels}
    costs = Costs(timings=found.timings, exchanges=exchange_costs(list(found.exchanges)))
    assert SimulatedEngine(plan, bound, environment, costs, 2).run(10).steps_per_second > 0


def test_every_op_is_timed_within_a_program():
    bound, environment, plan = prepare_plan(REPLAY, "gymnax:CartPole-v1", "fused:devices=1", envs=8, groups=8)
    probed = probed_from_json(json.loads(json.dumps(probed_to_json(probe(plan, bound, environment, 1, ops=True)))))
    found = probed.ops
    training = make_training(plan, bound, environment)
    known = {op_name(op) for op in ops_in(project(training.updates(), plan, 0))}
    assert set(found) == known
    assert {envs for envs, _ in found.values()} == {8}
    assert found["grad batch+summary -> gradients"][1] > found["grad samples -> lags"][1] >= 0
    assert probed.dispatch > 0


def test_an_op_that_changes_a_replay_is_timed_without_copying_it():
    def put(buffer: Any, experience: Any) -> tuple[Any]:
        return (buffer.at[experience].add(1.0),)

    def copy(buffer: Any, experience: Any) -> tuple[Any]:
        return (buffer + experience,)

    found = {}
    for function in (put, copy):
        op = Op("store", function, ("buffer", "experience"), ("buffer",))
        slots = {"buffer": jnp.zeros(1 << 24), "experience": jnp.int32(3)}
        (found[function.__name__],) = OpTimer((op,), slots).seconds()[0].values()
    assert found["put"] < found["copy"] / 20


def test_messages_cost_what_the_nearest_line_says():
    sizes = ((1, 1000), (2, 50_000), (1, 200_000))
    found = link_costs([ExchangeTime("send view", n, b, n * 2e-5 + b * 1e-9) for n, b in sizes])
    assert (found.cpu_per_message, found.cpu_per_byte) == (pytest.approx(2e-5), pytest.approx(1e-9))
    assert link_costs([]) == LinkCosts()
    # bytes would cost less than nothing, so the line is flat: (x/3 - 1)^2 + (x/1 - 1)^2 is least at 1.2
    flat = link_costs([ExchangeTime("send view", 1, 1000, 3e-5), ExchangeTime("send view", 1, 9000, 1e-5)])
    assert (flat.cpu_per_message, flat.cpu_per_byte) == (pytest.approx(1.2e-5), 0.0)


def test_each_kind_of_exchange_has_costs_of_its_own():
    sizes = ((1, 1000), (2, 50_000), (8, 200_000), (4, 1000))
    taken = [ExchangeTime("receive gradients", n, b, 1e-5 + n * 2e-5 + b * 1e-9) for n, b in sizes]
    found = exchange_costs([*taken, ExchangeTime("send view", 1, 0, 3e-4)])
    assert found["receive gradients"] == ExchangeCosts(*map(pytest.approx, (1e-5, 2e-5, 1e-9)))
    assert found["send view"].cpu_seconds(1, 0) == pytest.approx(3e-4)
    (one,) = exchange_costs([ExchangeTime("send view", 2, 4096, 3e-4)]).values()
    assert one == ExchangeCosts(per_link=pytest.approx(1.5e-4))
    costs = Costs(exchanges=found, links=LinkCosts(cpu_per_message=1.0))
    assert costs.exchange_seconds("gradients", False, 2, 1000) == pytest.approx(5.1e-5)
    assert costs.exchange_seconds("gradients", True, 2, 1000) == 2.0  # not timed: by the line through all others


def test_factors_come_from_segments_whose_ops_take_longer_than_to_begin_them():
    timed = [("play", 1e-5, 1.1e-4), ("learn", 2e-5, 1.2e-4), ("learn", 4e-3, 6.1e-3), ("both", 1e-3, 1.6e-3)]
    factors = kind_factors(timed, dispatch=1e-4)
    assert factors == {"learn": pytest.approx(6e-3 / 4e-3), "both": pytest.approx(1.5)}


def test_time_that_others_had_the_core_is_left_out_of_what_never_sleeps():
    whole, broken = TimedCall(1.0, 1.0), TimedCall(3.0, 1.0, broken=True)
    assert undisturbed([whole, broken]) == [Work(1.0, 1.0)]
    assert undisturbed([broken, broken]) == [Work(1.0, 1.0)] * 2
    assert undisturbed([TimedCall(1.0, 1.8)]) == [Work(1.0, 1.8)]
    # what cores worked for is known of many calls together, and not of each
    assert undisturbed([TimedCall(1.0, 0.2), TimedCall(1.0, 1.8)]) == [Work(1.0, 1.0)] * 2


def test_only_the_first_of_a_kind_after_a_wait_is_kept():
    act, step = (Op(name, tuple, (), ("actions",), HOST) for name in ("act", "env"))
    watch, wait = FirstCalls(), Recv("view", 0)
    for node in (act, step, act, step):
        watch.span(node, watch.clock())
    watch.span(wait, watch.clock() - 10.0, waiting=True)
    watch.span(act, watch.clock())
    watch.span(wait, watch.clock(), waiting=True)  # too short for the core to sleep
    watch.span(act, watch.clock())
    assert {name: len(calls) for name, calls in watch.calls.items()} == {"act -> actions": 2, "env -> actions": 1}


def test_a_run_on_processes_shows_first_calls_memory_and_what_waking_takes(planned):
    bound, environment, plan = planned
    tried = replan(plan, Policy("two", (Fragment("env act"), Fragment("store grad apply"))))
    ran = trial_run(tried, bound, environment)
    exchanges = {name for name in ran.first_calls if "->" not in name}
    assert (
        {"receive experience"}
        <= exchanges
        <= {f"{end} {s}" for end in ("send", "receive") for s in ("experience", "acting")}
    )
    assert set(ran.process_bytes) == {"env+act", "store+grad+apply"}
    assert min(ran.process_bytes.values()) > 2**26
    assert ran.start_seconds > ran.update_seconds > 0


def test_plans_that_are_tried_learn_the_same(planned):
    _, _, plan = planned
    tried = [p for p in split_plans(plan) if p is not None]
    assert {(p.envs, p.groups, p.lag, p.batches, p.asynchronous) for p in tried} == {(8, 8, 1, 8, False)}
    assert len({tuple((f.operators, f.replicas) for f in p.fragments) for p in tried}) == len(tried) == 8


class Sleeps(gymnasium.Env):
    """Waits for a part of every step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, broken: bool = False) -> None:
        self.broken = broken

    def reset(self, **_: Any) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        if self.broken:
            raise ValueError("the simulator is gone")
        time.sleep(0.001)
        return np.zeros(2, np.float32), 0.0, False, False, {}


def test_what_sleeps_is_told_from_what_works():
    bound, environment, plan = prepare_plan(SMALL, Sleeps, None, envs=8, groups=8)
    found = probe(plan, bound, environment, 1).timings
    (stepping,) = found["env actions -> timesteps"]
    assert min(w.seconds for w in stepping.calls) >= 8e-3
    assert max(w.cpu_seconds for w in stepping.calls) < 8e-3
    (acting,) = found["act observed -> actions"]
    assert all(w.seconds <= w.cpu_seconds + 1e-9 for w in acting.calls)


def test_a_profile_that_cannot_be_taken_names_the_operator():
    bound, environment, plan = prepare_plan(SMALL, Sleeps, None, envs=8, groups=8)
    with pytest.raises(TesseraError, match=r"`env` failed.*the simulator is gone"):
        probe(plan, bound, replace_env(environment), 1)


def replace_env(environment: Any) -> Any:
    made = prepare_plan(SMALL, lambda: Sleeps(broken=True), None, envs=8, groups=8)[1]
    assert type(made) is type(environment)
    return made


def some_profile(planned: Any) -> Profile:
    bound, environment, plan = planned
    calls = (Work(1e-3, 1e-3), Work(2e-3, 5e-4))
    costs = Costs(
        ops={"act observed -> actions": ((8, 1e-5),)},
        dispatch=1e-4,
        links=LinkCosts(1e-5, 0.0, 2e-5, 1e-9),
        exchanges={"send acting": ExchangeCosts(1e-5, 2e-5, 1e-9)},
        factors={"play": 1.5},
        timings={"env actions -> timesteps": (Timing(8, 1, calls),)},
        per_node=1e-6,
        after_wait={"send acting": 1e-5},
    )
    known = profiles.about(bound, environment, plan)
    return Profile(costs, Machine(2, 0, 1 << 34, 0), known, profiles.circumstances(), 1.0, 50.0, 7.0, 9.0, {"env": 5})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_CACHE", str(tmp_path))
    return tmp_path


def test_a_profile_is_found_again_by_what_it_is_of(planned, folder):
    bound, environment, plan = planned
    saved = some_profile(planned)
    assert find_profile(*planned) is None
    path = save_profile(saved)
    assert read_profile(path) == saved
    assert find_profile(*planned) == saved
    other = prepare_plan(replace(SMALL, unroll=8), "CartPole-v1", None, envs=8, groups=8)
    assert find_profile(*other) is None
    assert find_profile(bound, environment, replace(plan, envs=16)) is None


def test_a_stale_profile_is_noticed(planned, folder, capsys):
    saved = some_profile(planned)
    stale = replace(saved, circumstances={**saved.circumstances, "jax": "0.1.2", "cores": "99"})
    save_profile(stale)
    assert find_profile(*planned) is None
    assert changes(saved) == []
    assert f"jax 0.1.2, now {saved.circumstances['jax']}" in changes(stale)
    main(["doctor"])
    assert "stale: a2c in gymnasium:CartPole-v1 (cores 99, now" in capsys.readouterr().out


def test_a_profile_by_an_earlier_version_is_taken_again(planned, folder, capsys):
    path = save_profile(some_profile(planned))
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 1}))
    assert find_profile(*planned) is None
    main(["doctor"])
    assert f"{path.stem} (by an earlier version)" in capsys.readouterr().out


def test_a_profile_that_was_cut_short_says_so(planned):
    saved = some_profile(planned)
    assert saved.gap == ""
    short = replace(saved, skipped=("env | act+store+grad+apply", "env+act x 8 | store+grad+apply"))
    assert "2 plans were not tried, such as env | act+store+grad+apply" in short.gap
    assert "`tessera profile` goes on from here" in short.gap


def test_a_profile_that_was_cut_short_is_completed_where_that_is_asked_for(planned, folder, monkeypatch):
    whole = some_profile(planned)
    short = replace(whole, skipped=("env | act+store+grad+apply",))
    save_profile(short)
    monkeypatch.setattr(take, "take_profile", lambda *_: whole)
    bar = partial(nullcontext, lambda what, share: None)
    assert take.saved_or_taken(*planned, bar) == short
    assert take.saved_or_taken(*planned, bar, complete=True) == whole
    assert take.saved_or_taken(*planned, bar) == whole


def some_probe(seconds: float = 1e-3, **rest: Any) -> Probed:
    timing = Timing(8, 1, (Work(seconds, seconds), Work(2 * seconds, seconds)))
    return Probed(
        {"env actions -> timesteps": (timing,)}, (ExchangeTime("send view", 1, 64, 2e-5),), 1e-6, 3.0, {}, **rest
    )


def some_run(plan: Any) -> TrialRun:
    return TrialRun(plan, 2.0, {f.title: 1 << 28 for f in plan.fragments}, 0.01, 5, 1.5, {"send view": 3e-5})


def test_what_was_measured_is_read_as_it_was_written(planned):
    plan = planned[2]
    plans = {in_words(p): p for p in trial_plans(plan)}
    probes = {probe_name(in_one(plan), WHOLE): some_probe(speed=2.0), probe_name(in_one(plan), OPS): some_probe(2.0)}
    measured = Measurements(probes, {name: some_run(p) for name, p in plans.items()})
    written = json.loads(json.dumps(measurements_to_json(measured)))
    assert measurements_from_json(written, plans) == measured


def test_a_profile_goes_on_where_the_last_one_was_cut_short(planned, monkeypatch):
    asked: list[str] = []

    def probe_in_turns(jobs: Any, *_: Any) -> Any:
        for tried, ops in [(p, ops) for job in jobs for p, ops in zip(job.plans, job.ops, strict=True)][:4]:
            asked.append(in_words(tried) + (" Op by Op" if ops else ""))
            yield tried, replace(some_probe(), timings={}) if ops else some_probe()

    def run(tried: Any, *_: Any) -> TrialRun:
        asked.append(f"{in_words(tried)} on processes")
        return some_run(tried)

    monkeypatch.setattr(take, "probe_in_turns", probe_in_turns)
    monkeypatch.setattr(take, "trial_run", run)
    monkeypatch.setattr(take, "measure_slowdown", lambda *_: (1.0,))
    monkeypatch.setattr(take, "Calibration", NothingWaits)

    def silent(what: str, share: float) -> None:
        pass

    profile, takes = take.take_profile(*planned, silent, 0.01), 1  # no time for a run on processes
    assert len(asked) == 4
    assert not any("on processes" in each for each in asked)
    while profile.skipped and takes < 9:
        last = profile
        profile, takes = take.take_profile(*planned, silent, 60.0, profile), takes + 1
        assert len(profile.skipped) < len(last.skipped)
    assert profile.measured == {}
    assert len(asked) == len(set(asked))  # nothing twice
    probes = [p for p in split_plans(planned[2]) if p is not None]
    assert len(asked) == 2 + len(probes) + len(trial_plans(planned[2]))


class NothingWaits:
    """In the place of a calibration, which simulates."""

    def __init__(self, *_: Any) -> None:
        pass

    def with_waits(self, costs: Costs, *_: Any) -> Costs:
        return costs

    def with_switches(self, costs: Costs, *_: Any) -> Costs:
        return costs


@pytest.mark.parametrize("measured", [{}, {"probes": 3, "runs": {}}, {"probes": {}, "runs": {"env | apply": {}}}])
def test_nonsense_in_what_was_measured_is_refused_in_one_sentence(measured, planned):
    short = replace(some_profile(planned), skipped=("env",), measured=measured)
    with pytest.raises(TesseraError, match=r"cannot be gone on with.*`tessera profile --again`"):
        take.take_profile(*planned, lambda *_: None, 60.0, short)


def test_few_long_updates_are_timed_and_many_short_ones():
    assert [timed_updates(seconds) for seconds in (3.0, 1.05, 0.3, 0.04, 1e-6)] == [2, 2, 5, 25, MOST_UPDATES]


def test_a_process_that_tried_plans_says_how_much_memory_one_takes_where_none_was_run(planned):
    bound, environment, plan = planned
    findings = Findings()
    for held in (300, 200, 0):
        found = Probed({"env actions -> timesteps": (Timing(8, 1, (Work(1.0, 1.0),)),)}, (), 0.0, 1.0, {})
        findings.add(replace(found, process_bytes=held), alone=True)
    assert make_costs(findings, plan, bound, environment).process_bytes(["env", "act"]) == 200


@pytest.mark.parametrize("text", ["[]", "{}", '{"format": 7}', "not json", '{"format": 6, "costs": {"ops": 3}}'])
def test_a_file_that_is_no_profile_is_refused_in_one_sentence(text, planned, folder):
    path = save_profile(some_profile(planned))
    path.write_text(text)
    with pytest.raises(TesseraError) as refused:
        find_profile(*planned)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_nothing_is_kept_where_the_user_wants_nothing_kept(planned, monkeypatch):
    monkeypatch.setenv("TESSERA_CACHE", "")
    assert save_profile(some_profile(planned)) is None
    assert path_of(some_profile(planned).about) is None
    assert find_profile(*planned) is None


def test_costs_are_made_of_all_that_was_found(planned):
    bound, environment, plan = planned
    findings = Findings()
    tried = [p for p in (replan(plan, q) for q in [plan.origin[0]]) if p is not None]
    found = probe(tried[0], bound, environment, 1)
    findings.add(found, alone=True)
    sent = ExchangeTime("send view", 1, 10, 1.0)
    twice = replace(found, speed=2 * found.speed, ops={"act -> act_keys": (8, 1.0)}, exchanges=(sent,))
    findings.add(twice, alone=False)
    costs = make_costs(findings, plan, bound, environment)
    assert set(costs.timings) == set(found.timings)
    usual = 1.5 * found.speed  # between the two: what the faster one took 1 s for, takes the usual one 4/3 s
    assert costs.per_node == pytest.approx(found.per_node * found.speed / usual)
    assert costs.ops["act -> act_keys"] == ((8, pytest.approx(4 / 3)),)
    assert costs.exchange_seconds("view", True, 1, 10) == pytest.approx(4 / 3)
    assert alone(findings) == {"send view": pytest.approx(4 / 3)}
    (both,), (first,) = costs.timings["env actions -> timesteps"], found.timings["env actions -> timesteps"]
    assert len(both.calls) == 2 * len(first.calls)
    assert both.calls[0].seconds == pytest.approx(first.calls[0].seconds * 2 / 3)
    assert both.calls[-1].seconds == pytest.approx(first.calls[-1].seconds * 4 / 3)


@pytest.mark.slow
def test_plans_compile_side_by_side_and_whoever_is_timed_is_alone(planned, monkeypatch):
    bound, environment, plan = planned
    plans = [in_two(plan, split) for split in SPLITS[:2]]
    told: list[str] = []
    timing: list[int] = []
    stopped: list[str] = []
    taken = Prober.take_turn

    def take_turn(prober: Prober, others: list[Prober]) -> None:
        taken(prober, others)
        timing.append(prober.process.pid)
        stats = [Path(f"/proc/{other.process.pid}/stat").read_text() for other in others]
        stopped.extend(stat.rpartition(")")[2].split()[0] for stat in stats)

    monkeypatch.setattr(Prober, "take_turn", take_turn)
    job = ProbeJob(tuple(plans), bound, environment, 1, False, (False, False))
    jobs = [replace(job, plans=(tried,), ops=(False,)) for tried in plans]
    found = dict(probe_in_turns(jobs, *2 * [time.monotonic() + 120], told.append))
    assert set(found) == set(plans)
    assert all(probed.timings for probed in found.values())
    assert len(set(timing)) == len(timing) == 2
    assert stopped == ["T"]  # of the first to be timed; the second has no others
    assert told[0] == "2 plans are compiled"
    assert {in_words(tried) for tried in plans} <= set(told)
    timing.clear()
    assert list(dict(probe_in_turns([job], *2 * [time.monotonic() + 120], told.append))) == plans
    assert len(timing) == 2
    assert len(set(timing)) == 1  # one process, one plan after the other


def test_too_short_a_time_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["profile", "ppo", "gymnax:CartPole-v1", "--seconds", "5"])
    assert ended.value.code == 2
    assert "--seconds 5" in capsys.readouterr().err
