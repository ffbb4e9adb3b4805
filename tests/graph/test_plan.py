from __future__ import annotations

import dataclasses
import json

import pytest

from tessera import policies
from tessera.errors import TesseraError
from tessera.graph.channel import Channel
from tessera.graph.disciplines import bound_of, mode_of
from tessera.graph.plan import Needs, deal, make_plan
from tessera.graph.policy import ALL_DEVICES, Cut, Fragment, Policy
from tessera.graph.streams import STREAMS, route

ALL = "env act store grad apply"
QUEUE = Needs("ppo", "cartpole", device_env=True, batch=None, priorities=False, absorbs=False)
REPLAY = dataclasses.replace(QUEUE, algorithm="dqn", batch=32, priorities=True)
HOST = dataclasses.replace(QUEUE, device_env=False)


def cut(policy: Policy, needs: Needs = QUEUE) -> set[tuple[str, int, int, str]]:
    """Every channel of a plan, as (slot, source, target, route)."""
    plan = make_plan(policy, needs, 16)
    return {(c.slot, c.source, c.target, c.route) for c in plan.channels}


@pytest.mark.parametrize(("groups", "replicas"), [(8, 1), (8, 3), (8, 8), (5, 2), (7, 4), (1, 1)])
def test_dealing_gives_every_group_to_exactly_one_replica_and_none_goes_without(groups, replicas):
    dealt = deal(groups, replicas)
    assert [g for share in dealt for g in share] == list(range(groups))
    assert len(dealt) == replicas
    assert {len(share) for share in dealt} <= {groups // replicas, -(-groups // replicas)}


def test_replicas_may_hold_unequal_numbers_of_groups():
    plan = make_plan(policies.get("single_learner_coarse", actors=3), QUEUE, 16)
    actors, learner = plan.fragments
    assert sorted(len(g) for g in actors.groups) == [2, 3, 3]
    assert learner.groups == (tuple(range(8)),)


@pytest.mark.parametrize(
    ("envs", "groups"),
    [(64, 8), (16, 8), (12, 6), (6, 6), (7, 7), (1, 1), (10, 5), (9, 3), (11, 1)],
)
def test_groups_are_the_most_up_to_eight_that_divide_the_environments(envs, groups):
    plan = make_plan(Policy("p", (Fragment(ALL),)), QUEUE, envs)
    assert plan.groups == groups
    assert plan.envs_per_group * plan.groups == envs


def test_groups_are_at_least_as_many_as_replicas_even_beyond_eight():
    assert make_plan(Policy("p", (Fragment(ALL, replicas=10),)), QUEUE, 60).groups == 10


def test_groups_divide_the_rows_of_a_draw_too():
    assert make_plan(Policy("p", (Fragment(ALL),)), dataclasses.replace(REPLAY, batch=12), 16).groups == 4


def test_groups_that_were_asked_for_are_used_or_refused_with_the_numbers():
    fused = Policy("p", (Fragment(ALL),))
    assert make_plan(fused, QUEUE, 16, groups=2).groups == 2
    with pytest.raises(TesseraError, match="--groups 3 does not fit 16 environments"):
        make_plan(fused, QUEUE, 16, groups=3)
    with pytest.raises(TesseraError, match="--groups 8 does not fit 16 environments, a draw of 12 rows"):
        make_plan(fused, dataclasses.replace(REPLAY, batch=12), 16, groups=8)
    with pytest.raises(TesseraError, match="--groups 0"):
        make_plan(fused, QUEUE, 16, groups=0)
    with pytest.raises(TesseraError, match="--groups 2 does not fit 16 environments, 4 replicas"):
        make_plan(Policy("p", (Fragment(ALL, replicas=4),)), QUEUE, 16, groups=2)


def test_environments_that_cannot_be_dealt_are_refused_with_the_numbers():
    with pytest.raises(TesseraError, match="7 environments cannot be dealt into 8 or more equal groups"):
        make_plan(Policy("p", (Fragment(ALL, replicas=8),)), QUEUE, 7)
    with pytest.raises(TesseraError, match="--envs 0"):
        make_plan(Policy("p", (Fragment(ALL),)), QUEUE, 0)


def test_a_fragment_that_asks_for_more_devices_than_there_are_hears_both_numbers():
    policy = Policy("p", (Fragment("env act"), Fragment("store grad apply", devices=4)))
    with pytest.raises(TesseraError, match=r"store\+grad\+apply asks for 4 devices, available: 2 \(gpu\)"):
        make_plan(policy, QUEUE, 16, platform="gpu", available=2)


@pytest.mark.parametrize(("envs", "available", "devices"), [(64, 8, 8), (4, 8, 4), (12, 8, 6), (7, 4, 1)])
def test_all_devices_are_as_many_as_the_environments_share_out_over(envs, available, devices):
    plan = make_plan(Policy("p", (Fragment(ALL, devices=ALL_DEVICES),)), QUEUE, envs, available=available)
    assert plan.fragments[0].devices == devices
    assert plan.groups % devices == 0


def test_devices_that_replicas_cannot_share_evenly_are_refused():
    policy = Policy("p", (Fragment("env act", 3, devices=2), Fragment("store grad apply")))
    with pytest.raises(TesseraError, match="8 groups over 3 replicas of 2 devices do not share out evenly"):
        make_plan(policy, QUEUE, 16, groups=8, available=2)


def test_fused_on_one_device_cuts_no_stream():
    assert cut(policies.get("fused", devices=1), REPLAY) == set()


def test_coarse_gathers_experience_and_copies_params_and_cuts_nothing_else():
    assert cut(policies.get("single_learner_coarse", actors=3), REPLAY) == {
        ("experience", 0, 1, "reshard"),
        ("acting", 1, 0, "copy"),
    }


def test_a_fragment_with_act_and_grad_receives_params_once():
    central = Policy("central", (Fragment("env act store grad", 2), Fragment("apply")))
    assert cut(central) == {("summary", 0, 0, "gather"), ("gradients", 0, 1, "mean"), ("view", 1, 0, "copy")}


def test_a_summary_goes_to_apply_only_where_it_is_absorbed():
    central = Policy("central", (Fragment("env act store grad", 2), Fragment("apply")))
    absorbed = cut(central, dataclasses.replace(QUEUE, absorbs=True)) - cut(central)
    assert absorbed == {("summary", 0, 1, "gather")}


def test_priorities_flow_only_where_the_store_keeps_them():
    replay = Policy("p", (Fragment("env act"), Fragment("store", 2), Fragment("grad apply")))
    assert cut(replay, REPLAY) - cut(replay, dataclasses.replace(REPLAY, priorities=False)) == {
        ("priorities", 2, 1, "reshard")
    }


def test_replicas_of_grad_average_gradients_and_gather_summaries_among_themselves():
    assert cut(Policy("multi", (Fragment(ALL, 3),))) == {("summary", 0, 0, "gather"), ("gradients", 0, 0, "mean")}


def disciplines(text: str, needs: Needs = QUEUE) -> dict[str, tuple[str, str, int | None]]:
    """How each channel of a plan behaves: slot -> (kind, mode, bound)."""
    plan = make_plan(policies.parse(text), needs, 16)
    return {c.slot: (c.kind, mode_of(c.discipline), bound_of(c.discipline)) for c in plan.channels}


def test_a_server_of_several_shards_scatters_gradients_joins_params_and_sums_norms():
    assert cut(policies.parse("central:workers=2,shards=3")) == {
        ("summary", 0, 0, "gather"),
        ("gradients", 0, 1, "scatter"),
        ("squares", 1, 1, "sum"),
        ("view", 1, 0, "join"),
    }


def test_a_gradient_that_is_applied_by_itself_brings_its_norm_and_its_summary():
    absorbs = dataclasses.replace(QUEUE, absorbs=True)
    assert disciplines("central:workers=2,shards=3,mode=async,lag=2", absorbs) == {
        "gradients": ("queue", "async", 2),
        "view": ("register", "async", 2),
    }


def test_async_actors_fill_a_queue_and_read_a_register():
    assert disciplines("single_learner_coarse:mode=async") == {
        "experience": ("queue", "async", None),
        "acting": ("register", "async", None),
    }


def test_peers_exchange_through_collectives_or_one_memory():
    assert disciplines("averaging") == {"updates": ("collective", "sync", None)}
    assert disciplines("hogwild") == {"updates": ("shared", "sync", None)}
    assert disciplines("mirrored") == {"experience": ("collective", "sync", None)}
    assert disciplines("decentralised") == {"gradients": ("collective", "async", 1)}
    assert set(disciplines("decentralised:lag=0")) == {"gradients", "summary"}


@pytest.mark.parametrize("name", ["averaging", "hogwild", "mirrored", "decentralised", "multi_learner"])
def test_a_peer_without_peers_exchanges_nothing(name):
    policy = policies.get(name, **{"learners" if name == "multi_learner" else "workers": 1})
    plan = make_plan(policy, REPLAY, 16)
    assert plan.channels == ()
    assert plan.exchange == ""


def test_mirrored_replicas_play_their_own_groups_and_learn_from_all():
    (placed,) = make_plan(policies.get("mirrored", workers=2), QUEUE, 16).fragments
    assert placed.held("act") == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert placed.held("grad") == (tuple(range(8)),) * 2


def test_waiting_for_the_first_few_actors_makes_updates_of_their_share():
    waiting = policies.parse("single_learner_coarse:actors=4,mode=first,first=3")
    plan = make_plan(waiting, QUEUE, 16)
    assert (plan.groups, plan.batches, plan.envs_per_update) == (8, 6, 12)
    with pytest.raises(TesseraError, match=r"a draw of 32 rows cannot be dealt .* to wait for 3 of 4 actors"):
        make_plan(waiting, REPLAY, 16)
    with pytest.raises(TesseraError, match="for a replay, a multiple of those that an update learns from"):
        make_plan(waiting, dataclasses.replace(REPLAY, batch=15), 16)  # what is left over would never be taken


@pytest.mark.parametrize(
    ("policy", "needs", "batches"),
    [
        ("single_learner_coarse:actors=4,mode=async,take=3", QUEUE, ((0, 1, 2),)),
        ("multi_learner_coarse:actors=4,learners=2,mode=async,take=4", QUEUE, ((0, 1), (2, 3))),
        ("distributed_replay:actors=4,stores=2,mode=async,take=2", REPLAY, ((0,), (1,))),
    ],
)
def test_a_batch_of_so_many_groups_does_not_grow_with_the_actors(policy, needs, batches):
    plan = make_plan(policies.parse(policy), needs, 16)
    learned = sum(len(b) for b in batches)
    assert (plan.groups, plan.batches, plan.envs_per_update) == (8, learned, 2 * learned)
    assert plan.fragments[plan.home("store")].held("store") == batches
    (channel,) = (c for c in plan.channels if c.stream == "experience")
    assert Channel.from_json(json.loads(json.dumps(channel.to_json()))) == channel
    many = make_plan(policies.parse(policy.replace("actors=4", "actors=16")), needs, 64)
    assert (many.groups, many.batches) == (16, learned)


def test_an_update_takes_no_more_groups_than_there_are_and_one_for_each_learner():
    most = make_plan(policies.parse("single_learner_coarse:actors=2,mode=async,take=16"), QUEUE, 16)
    assert (most.groups, most.batches) == (16, 16)
    with pytest.raises(TesseraError, match=r"an update takes 17 of them"):
        make_plan(policies.parse("single_learner_coarse:actors=2,mode=async,take=17"), QUEUE, 16)
    uneven = "multi_learner_coarse:actors=3,learners=3,mode=async,take=7"
    assert len(make_plan(policies.parse(uneven), QUEUE, 72, groups=9).fragments[1].held("store")[1]) == 3
    with pytest.raises(TesseraError, match="an update takes 7 of them, to 3 learners"):
        make_plan(policies.parse(uneven), QUEUE, 72, groups=8)  # the second would have 2 groups, and wait for 3
    with pytest.raises(TesseraError, match=r"an update takes 1 of them, to 2 learners"):
        make_plan(policies.parse("multi_learner_coarse:mode=async,take=1"), QUEUE, 16)


def test_a_gradient_applied_by_itself_learns_from_one_workers_environments():
    assert make_plan(policies.parse("central:workers=4,mode=async"), QUEUE, 16).envs_per_update == 4
    assert make_plan(policies.parse("central:workers=4"), QUEUE, 16).envs_per_update == 16


def test_only_the_server_counts_updates_where_others_run_at_their_own_pace():
    plan = make_plan(policies.get("gorila"), REPLAY, 16)
    assert [plan.counted(i) for i in range(4)] == [False, False, False, True]
    assert make_plan(policies.get("gorila", mode="sync"), REPLAY, 16).counted(0)


def test_cores_that_there_are_not_are_refused_with_asked_and_available(monkeypatch):
    monkeypatch.setattr("tessera.graph.plan.cores", lambda: 4)
    fragments = (Fragment("env act", 3, cores=1), Fragment("store grad apply"))
    placed = make_plan(Policy("p", fragments), QUEUE, 16).fragments
    assert [(f.cores, f.threads) for f in placed] == [((1, 1, 1), 1), ((), 1)]
    greedy = Policy("p", (Fragment("env act", 2, cores=2), Fragment("store grad apply")))
    with pytest.raises(TesseraError, match=r"asks for 4 cores \(env\+act 4\), and 1 more replicas .*; available: 4"):
        make_plan(greedy, QUEUE, 16)


def test_replicas_that_share_a_process_are_batched():
    fragments = (Fragment("env act", 4, processes=2), Fragment("store grad apply"))
    actors = make_plan(Policy("p", fragments), QUEUE, 16).fragments[0]
    assert (actors.replicas, actors.asked) == (2, 4)
    assert actors.groups == deal(8, 2)


def test_the_engine_is_local_where_there_are_several_replicas_and_as_asked():
    assert make_plan(policies.get("fused", devices=1), QUEUE, 16).engine == "serial"
    assert make_plan(policies.get("multi_learner"), QUEUE, 16).engine == "local"
    assert make_plan(policies.get("multi_learner"), QUEUE, 16, engine="serial").engine == "serial"
    with pytest.raises(TesseraError, match="unknown engine 'seral': did you mean 'serial'"):
        make_plan(policies.get("fused"), QUEUE, 16, engine="seral")


def test_layouts_and_replicas_decide_every_route():
    by = {(s.slot, s.target): s for s in STREAMS}
    assert route(by["timesteps", "act"], 2, together=True) is None
    assert route(by["timesteps", "act"], 2, together=False) == "reshard"
    assert route(by["summary", "grad"], 1, together=True) is None
    assert route(by["summary", "grad"], 2, together=True) == "gather"
    assert route(by["gradients", "apply"], 1, together=False) == "mean"
    assert route(by["view", "grad"], 1, together=False) == "copy"
    assert route(by["view", "grad"], 4, together=True) is None


def test_acting_trails_by_one_update_with_host_environments_and_by_none_otherwise():
    coarse = policies.get("single_learner_coarse")
    assert make_plan(coarse, QUEUE, 16).lag == 0
    assert make_plan(coarse, HOST, 16).lag == 1
    named = dataclasses.replace(coarse, cuts={"params": Cut(lag=3)})
    plan = make_plan(named, HOST, 16)
    assert plan.lag == 3
    assert {c.slot: c.lag for c in plan.channels} == {"experience": 0, "acting": 3}


def test_cores_of_a_cluster_are_not_those_of_the_machine_that_plans():
    wide = Policy("wide", (Fragment("env act", 4, cores=1_000), Fragment("store grad apply")))
    with pytest.raises(TesseraError, match=r"asks for 4000 cores .*; available"):
        make_plan(wide, QUEUE, 16)
    assert make_plan(wide, QUEUE, 16, engine="ray").fragments[0].cores == (1_000,) * 4
