"""The Ray engine on a cluster of three nodes: it learns what one thread learns, and it survives deaths."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import mapped
import numpy as np
import pytest
import test_local
from test_local import ALGORITHMS, LOCK_STEP, SYNC, assert_equal, expected

import tessera
from tessera import TesseraError, policies
from tessera.channels.control_words import CONTROL_WORDS, PRESENCE
from tessera.channels.link import GONE, HERE, REFILLING, LinkSpec
from tessera.channels.rpc.wire import Packet, Sender
from tessera.engines.base import Interrupted
from tessera.engines.driver.process_engine import ProcessEngine
from tessera.engines.ray_backend import cluster
from tessera.engines.replica.job import Job
from tessera.errors import RunFailed
from tessera.planning.prepare import prepare_plan

FAST = [("multi_learner:learners=3", "ppo"), ("distributed_replay", "dqn")]  # 8 groups: peers that differ


pytestmark = pytest.mark.usefixtures("nodes")


def make_engine(algorithm: Any, policy: str, **options: Any) -> Any:
    from tessera.engines.ray import RayEngine

    defaults = {"envs": 16, "groups": 8, "precision": "f32"}
    planning = {name: options.pop(name, value) for name, value in defaults.items()}
    bound, env, plan = prepare_plan(algorithm, "gymnax:CartPole-v1", policy, engine="ray", **planning)
    return RayEngine(plan, bound, env, seed=3, horizon=10, **options)


def run(name: str, policy: str) -> Any:
    """The learner's state after a few updates."""
    from tessera.engines.ray import RayEngine

    return test_local.run(RayEngine, name, policies.parse(policy))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("policy", "name"), FAST)
def test_actors_on_a_cluster_give_the_params_of_fused(policy, name):
    assert_equal(run(name, policy), expected(name))


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("policy", "name"),
    [(p, n) for p, _ in (*SYNC, *LOCK_STEP) for n in ALGORITHMS if (p, n) not in FAST and p != "fused:devices=1"],
)
def test_actors_on_a_cluster_give_the_params_of_fused_for_every_algorithm(policy, name):
    assert_equal(run(name, policy), expected(name))


@pytest.fixture
def one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """All replicas of a run are on the same node."""
    monkeypatch.setattr("tessera.engines.ray_backend.launcher.STRATEGY", "STRICT_PACK")


@pytest.mark.usefixtures("x64", "one_node")
@pytest.mark.parametrize(
    ("policy", "name"),
    [pytest.param("distributed_replay", "dqn", marks=pytest.mark.slow), ("split_inference", "a2c")],
)
def test_actors_of_one_node_share_memory_and_give_the_params_of_fused(policy, name):
    engine = make_engine(ALGORITHMS[name], policy, precision="f64")
    try:
        layouts = [engine.launcher._node_memory.layout(k) for k in range(len(engine.jobs))]
        assert all(set(layout.links) == set(engine.link_specs) for layout in layouts)
        engine.start()
        engine.advance(test_local.UPDATES)
        assert_equal(jax.tree.map(np.array, engine.state()), expected(name))
    finally:
        engine.close()


@pytest.mark.slow
def test_replicas_are_spread_over_nodes_and_have_names():
    import ray

    engine = make_engine(ALGORITHMS["a2c"], "single_learner_coarse:actors=3")
    try:
        engine.start()
        titles = {replica.title for replica in engine.status()}
        assert {name.split()[0] for name in ray.util.list_named_actors()} == titles
        assert {actor.repr_name for actor in actor_table() if actor.state == actor.ALIVE} == titles
        groups = [group["name"] for group in ray.util.placement_group_table().values() if group["state"] == "CREATED"]
        assert [name.split()[:2] for name in groups] == [["tessera", "single_learner_coarse"]]
        total = {node["NodeID"]: node["Resources"]["CPU"] for node in ray.nodes() if node["Alive"]}
        free = ray._private.state.available_resources_per_node()
        assert all(free[node].get("CPU", 0) < total[node] for node in total)  # each node has a replica
    finally:
        engine.close()


def actor_table() -> list[Any]:
    """The table that Ray's dashboard shows."""
    from ray._private.state import state
    from ray.core.generated import gcs_pb2

    rows = state._connect_and_get_accessor().get_actor_table(None, None)
    return [gcs_pb2.ActorTableData.FromString(row) for row in rows]


def test_the_dashboard_is_on_loopback_wherever_the_nodes_listen(monkeypatch, tmp_path):
    commands: list[list[str]] = []
    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(
        cluster.subprocess, "Popen", lambda command, **_: commands.append(command) or SimpleNamespace(pid=os.getpid())
    )
    for number in range(2):
        cluster._start(number, [], "10.0.0.5", 1, 1, tmp_path, tmp_path / "token")
    assert {"--include-dashboard=true", "--dashboard-host=127.0.0.1"} < set(commands[0])
    assert not [word for word in commands[1] if "dashboard" in word]  # only the head has one


@pytest.mark.slow
def test_a_run_goes_on_from_a_snapshot_of_another_engine_to_the_same_bits():
    from tessera.engines.local import LocalEngine

    algorithm = ALGORITHMS["a2c"]
    engine = make_engine(algorithm, "single_learner_coarse")
    local = LocalEngine(engine.plan, engine.training.algorithm, engine.training.env, seed=3, horizon=10)
    try:
        local.start()
        local.advance(2)
        engine.restore(jax.device_get(local.snapshot()))
        local.advance(2)
        engine.advance(2)
        jax.tree.map(np.testing.assert_array_equal, engine.state().params, local.state().params)
    finally:
        engine.close()
        local.close()


@pytest.mark.parametrize(
    ("policy", "strategy"),
    [
        ("single_learner_coarse:actors=2,mode=async", "SPREAD"),
        pytest.param("single_learner_coarse:actors=2", "STRICT_PACK", marks=pytest.mark.slow),
        pytest.param("single_learner_coarse:actors=2", "SPREAD", marks=pytest.mark.slow),
        pytest.param("single_learner_coarse:actors=2,mode=async", "STRICT_PACK", marks=pytest.mark.slow),
    ],
)
def test_an_actor_that_is_killed_is_replaced_and_the_run_goes_on(policy, strategy, monkeypatch, tmp_path):
    monkeypatch.setattr("tessera.engines.ray_backend.launcher.STRATEGY", strategy)
    advance, killed = ProcessEngine.advance, []

    def advancing(engine: ProcessEngine, count: int, ahead: int = 0) -> Any:
        if not killed and engine.done >= 20 and "env+act/0" in engine.processes():
            killed.append(engine.done)
            os.kill(engine.processes()["env+act/0"], signal.SIGKILL)
        return advance(engine, min(count, 20), ahead)

    monkeypatch.setattr(ProcessEngine, "advance", advancing)
    result = tessera.train(
        tessera.A2C(unroll=8, widths=(8,)), "gymnax:CartPole-v1", policy, steps=80 * 8 * 16, seed=1, envs=16,
        engine="ray", run_dir=tmp_path / "run", eval_episodes=4, quiet=True,
    )  # fmt: skip
    assert killed
    assert result.summary["restarts"] == 1
    updates = [row["update"] for row in result.metrics]
    assert updates == sorted(set(updates))  # the run did not go back to a checkpoint
    assert updates[-1] == result.summary["updates"]


def relays(engine: Any) -> list[str]:
    """Titles of the actors that pass the learner's params on, on each node with several."""
    launcher, learner = engine.launcher, len(engine.jobs) - 1
    groups = [group for own in launcher._node_memory.layout(learner).groups.values() for group in own]
    (readers,) = {spec.readers for spec in engine.link_specs.values() if spec.writer == learner}
    titles = [title for *_, title in engine.plan.places]
    return [titles[readers[group[learner % len(group)]]] for group in groups]


@pytest.mark.usefixtures("x64")
def test_actors_that_share_what_comes_to_their_node_give_the_params_of_fused():
    engine = make_engine(ALGORITHMS["a2c"], "single_learner_coarse:actors=4", precision="f64")
    try:
        assert relays(engine)
        engine.start()
        engine.advance(test_local.UPDATES)
        assert_equal(jax.tree.map(np.array, engine.state()), expected("a2c"))
    finally:
        engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["single_learner_coarse:actors=6", "single_learner_coarse:actors=6,mode=async"])
@pytest.mark.parametrize("relay", [True, False])
def test_one_of_several_actors_of_a_node_is_killed_and_the_run_goes_on(relay, policy, monkeypatch, tmp_path):
    advance, killed = ProcessEngine.advance, []
    times = 1 if "async" in policy else 2  # an asynchronous run may be over before a second one could be killed

    def advancing(engine: ProcessEngine, count: int, ahead: int = 0) -> Any:
        due = len(killed) < times and engine.done >= 20 * (1 + len(killed)) and engine.restarts == len(killed)
        if due and len(engine.processes()) == 7:
            passing = relays(engine)
            titles = passing if relay else [t for t in engine.processes() if t[:7] == "env+act" and t not in passing]
            killed.append(titles[len(killed) % len(titles)])
            os.kill(engine.processes()[killed[-1]], signal.SIGKILL)
        return advance(engine, min(count, 20), ahead)

    monkeypatch.setattr(ProcessEngine, "advance", advancing)
    result = tessera.train(
        tessera.A2C(unroll=8, widths=(8,)), "gymnax:CartPole-v1", policy, steps=120 * 8 * 18, seed=1, envs=18,
        engine="ray", run_dir=tmp_path / "run", eval_episodes=4, quiet=True,
    )  # fmt: skip
    assert len(killed) == times
    assert result.summary["restarts"] == times
    updates = [row["update"] for row in result.metrics]
    assert updates == sorted(set(updates))  # the run did not go back to a checkpoint
    assert updates[-1] == result.summary["updates"]


def go_back(engine: Any, title: str, updates: int) -> None:
    """Make so many updates, kill a replica that nobody can replace alone, and go back to where they ended."""
    engine.start()
    engine.advance(updates)
    saved = jax.device_get(engine.snapshot())
    os.kill(engine.processes()[title], signal.SIGKILL)
    with pytest.raises(Interrupted):
        engine.advance(8)
    engine.rebuild()
    engine.restore(saved)


def test_a_learner_that_is_killed_sends_the_run_back_to_its_checkpoint(tmp_path):
    engine = make_engine(ALGORITHMS["a2c"], "single_learner_coarse:actors=2", note=lambda _: None)
    try:
        go_back(engine, "store+grad+apply/0", 4)
        engine.advance(4)
        assert int(engine.state().clock.applies) == 8
        assert engine.restarts == 1
    finally:
        engine.close()


def test_two_runs_without_an_address_have_a_ray_each():
    program = "from tessera.engines.ray import connect; connect(None, 1); print('up', flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with contextlib.ExitStack() as stack:
        runs = []
        for _ in range(2):  # the second starts while the first is there
            runs.append(stack.enter_context(subprocess.Popen([sys.executable, "-c", program], **pipes)))
            stack.callback(runs[-1].communicate, "\n")
            assert runs[-1].stdout.readline() == "up\n"


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_peers_that_gather_and_reduce_begin_again_together_and_learn_the_same():
    engine = make_engine(ALGORITHMS["ppo"], "multi_learner:learners=2", note=lambda _: None, precision="f64")
    try:
        go_back(engine, "env+act+store+grad+apply/1", 1)
        engine.advance(test_local.UPDATES - 1)
        assert_equal(jax.tree.map(np.array, engine.state()), expected("ppo"))
    finally:
        engine.close()


@pytest.mark.slow
def test_two_linked_replicas_that_die_at_once_send_the_run_back_and_are_both_counted():
    notes: list[str] = []
    engine = make_engine(ALGORITHMS["a2c"], "central:workers=1,shards=2,mode=async", note=notes.append)
    try:
        engine.start()
        engine.advance(4)
        saved = jax.device_get(engine.snapshot())
        for title in ("env+act+store+grad/0", "apply/1"):
            os.kill(engine.processes()[title], signal.SIGKILL)
        with pytest.raises(Interrupted):
            engine.advance(64)
        assert (
            "it died together with one that it was linked with; the run goes back to its last checkpoint" in notes[-1]
        )
        engine.rebuild()
        engine.restore(saved)
        engine.advance(4)
        assert engine.restarts == 2
    finally:
        engine.close()


@pytest.mark.slow
def test_without_room_for_a_replica_an_asynchronous_run_goes_on(monkeypatch):
    notes: list[str] = []
    engine = make_engine(ALGORITHMS["a2c"], "single_learner_coarse:actors=2,mode=async", note=notes.append)
    try:
        engine.start()
        engine.advance(4)
        kill_and_leave_no_room("env+act/0", engine, monkeypatch)
        while not any("goes on with fewer replicas" in note for note in notes):
            engine.advance(4)
        assert "no node has room for replica env+act/0 (asked: 1 CPU; available: node 0:" in notes[-1]
        engine.advance(8)
    finally:
        engine.close()


@pytest.mark.slow
def test_if_all_wait_for_a_replica_without_room_the_run_goes_back(monkeypatch):
    notes: list[str] = []
    engine = make_engine(ALGORITHMS["a2c"], "central:workers=1,shards=2,mode=async", note=notes.append, timeout=4.0)
    try:
        engine.start()
        engine.advance(4)
        kill_and_leave_no_room("apply/1", engine, monkeypatch)
        with pytest.raises(Interrupted):
            engine.advance(64)
        assert any("all replicas have waited for each other" in note for note in notes)
    finally:
        engine.close()


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_a_run_that_begins_again_has_as_many_replicas_as_there_is_room_for_and_learns_the_same(monkeypatch):
    notes: list[str] = []
    engine = make_engine(ALGORITHMS["a2c"], "multi_learner:learners=2", note=notes.append, precision="f64")
    try:
        engine.start()
        engine.advance(1)
        saved = jax.device_get(engine.snapshot())
        monkeypatch.setattr("tessera.engines.ray.total_resources", lambda: [{"CPU": 1.5}])
        engine.rebuild()
        assert notes[-1].endswith("the run goes on with 1 of 2 env+act+store+grad+apply")
        assert len(engine.status()) == engine.plan.fragments[0].replicas == 1
        engine.restore(saved)
        engine.advance(test_local.UPDATES - 1)
        assert_equal(jax.tree.map(np.array, engine.state()), expected("a2c"))
        monkeypatch.setattr("tessera.engines.ray.total_resources", list)
        with pytest.raises(RunFailed, match=r"Asked: 1 × .* Available: no node.* then --resume"):
            engine.rebuild()
    finally:
        engine.close()


def kill_and_leave_no_room(title: str, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill a replica, and have Ray find no node for actors from now on."""
    from tessera.engines.ray_backend import launcher

    def actor_without_a_node(job: Any) -> Any:
        return launcher.RemoteActor.options(num_cpus=10_000).remote()

    monkeypatch.setattr(launcher, "CAPACITY_SECONDS", 1.0)
    monkeypatch.setattr(launcher, "START_SECONDS", 1.0)
    monkeypatch.setattr(engine.launcher, "_create_actor", actor_without_a_node)
    os.kill(engine.processes()[title], signal.SIGKILL)


def driver_link_of(actor: FakeActor) -> Any:
    """The driver link that an actor would make from its job."""
    from tessera.channels.shared_memory import Arena
    from tessera.engines.ray_backend.ray_driver_link import RayDriverLink

    *arguments, layout, _ = actor.calls["run_replica"]
    return RayDriverLink(*arguments, layout, Arena(layout.size), in_group=False)


class FakeActor:
    """Stands in for a handle of a Ray actor, and records its calls."""

    def __init__(self) -> None:
        self.calls: dict[str, tuple[Any, ...]] = {}

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: self.calls.update({name: arguments}))


def test_a_successor_knows_which_stores_are_gone_and_reports_itself_when_it_is_back(monkeypatch):
    from tessera.engines.ray_backend.launcher import RayLauncher

    actor, store = FakeActor(), FakeActor()
    bound, env, plan = prepare_plan(
        ALGORITHMS["dqn"], "gymnax:CartPole-v1", "distributed_replay:actors=1,stores=2,mode=async", envs=16
    )
    jobs = [Job(plan, bound, env, i, r, k, 0, 1, False) for k, (i, r, _) in enumerate(plan.places)]
    spec = LinkSpec(like=np.zeros(2, np.float32), readers=(1, 2), writer=0, capacity=1, absent=GONE)
    words = [[0] * CONTROL_WORDS for _ in jobs]
    monkeypatch.setattr("tessera.engines.ray_backend.launcher.placement_group", lambda *_, **__: FakeActor())
    monkeypatch.setattr(RayLauncher, "_wait_for_placement", lambda launcher: None)
    monkeypatch.setattr(RayLauncher, "_nodes", lambda launcher: ["a", "b", "c", "d"])
    monkeypatch.setattr(RayLauncher, "_create_actor", lambda launcher, job: store if job.place else actor)
    monkeypatch.setattr(RayLauncher, "_register_successor", lambda launcher, place: {})
    launcher = RayLauncher(plan, jobs, {(0, 0): spec}, words, print, "")
    words[1][PRESENCE] = GONE
    launcher.start(replace(jobs[0], is_successor=True))
    words[1][PRESENCE] = HERE  # it is back before the launcher has passed on that it was gone
    launcher.wait([], 0)
    assert driver_link_of(actor).presences[1][1] == HERE
    words[1][PRESENCE] = GONE
    launcher.wait([], 0)
    launcher.start(replace(jobs[0], is_successor=True))
    driver_link = driver_link_of(actor)
    driver_link.link(0, 0).put(spec.like, 0)
    driver_link.receive_credits({((0, 0), 1): 1})
    assert driver_link.link(0, 0).can_send()  # the other store has taken it, and this one is not waited for
    life = driver_link.presences[1][0]
    driver_link.receive_packet(Packet(Sender(1, life, HERE), {}), [])  # the store's own packet is the first to say so
    driver_link.set_control({}, {1: (life, REFILLING)})  # older news from the driver
    driver_link.link(0, 0).put(spec.like, 0)
    driver_link.receive_credits({((0, 0), 1): 2})
    assert not driver_link.link(0, 0).can_send()  # now both are waited for
    driver_link.set_control({}, {1: (life + 1, GONE)})  # it dies again
    assert driver_link.link(0, 0).can_send()
    launcher.start(replace(jobs[1], is_successor=True))
    successor = driver_link_of(store)
    assert successor.control.presence == GONE
    successor.control.presence = HERE
    successor.set_control({}, {1: (life, REFILLING)})  # older news from the driver
    assert successor.control.presence == HERE


def test_neighbours_see_at_once_whether_a_store_is_back():
    from tessera.channels.rings import lay_out
    from tessera.channels.shared_memory import Arena
    from tessera.engines.ray_backend.ray_driver_link import RayDriverLink

    bound, env, plan = prepare_plan(
        ALGORITHMS["dqn"], "gymnax:CartPole-v1", "distributed_replay:actors=1,stores=2,mode=async", envs=16
    )
    name = (0, 0)
    spec = LinkSpec(like=np.zeros(2, np.float32), readers=(1, 2), writer=0, capacity=1, absent=GONE)
    layout = lay_out(plan, {name: spec}, None)
    arena = Arena(layout.size)

    def driver_link(place: int, life: int = 1, presence: int = HERE) -> Any:
        job = Job(plan, bound, env, *plan.places[place][:2], place, 0, 1, False)
        words = [0] * CONTROL_WORDS
        words[PRESENCE] = presence
        return RayDriverLink(job, {name: spec}, {}, life, words, {}, layout, arena, in_group=False)

    actor, first, second = (driver_link(place) for place in range(3))
    actor.link(0, 0).put(spec.like, 0)
    second.link(0, 0).release(1)
    assert not actor.link(0, 0).can_send()  # the first store has not taken it
    actor.set_control({}, {1: (2, GONE)})  # it is dead
    assert actor.link(0, 0).can_send()
    first = driver_link(1, life=2, presence=GONE)
    assert actor.link(0, 0).can_send()
    actor.link(0, 0).put(spec.like, 0)
    second.link(0, 0).release(1)
    first.control.presence = REFILLING
    assert not actor.link(0, 0).can_send()  # no other replica had to pass on that it is back
    first.link(0, 0).skip(0)
    assert actor.link(0, 0).can_send()
    seen = actor.look()
    second.link(0, 0).skip(1)
    actor.wait(seen, 0.0)
    assert actor.look() != seen  # a reader that releases wakes the writer


def test_a_node_whose_memory_a_replica_cannot_open_uses_packets(monkeypatch):
    from tessera.engines.ray_backend.node_memory import NodeMemory

    class AnsweringActor(FakeActor):
        def __init__(self, answer: Any) -> None:
            self.answer = answer

        def __getattr__(self, name: str) -> Any:
            return SimpleNamespace(remote=lambda *_: self.answer)

    *_, plan = prepare_plan(ALGORITHMS["a2c"], "gymnax:CartPole-v1", "single_learner_coarse:actors=4", envs=16)
    like = np.zeros(2, np.float32)
    specs = {
        (0, 0): LinkSpec(like=like, readers=(1,), writer=0, capacity=1),
        (0, 1): LinkSpec(like=like, readers=(3,), writer=2, capacity=1),
        (1, 0): LinkSpec(like=like, readers=(1, 3), writer=0, capacity=1),
    }
    monkeypatch.setattr("tessera.engines.ray_backend.node_memory.ray.get", lambda value, timeout=None: value)
    monkeypatch.setattr(
        "tessera.engines.ray_backend.node_memory.ray.wait", lambda pending, timeout: (pending[:1], pending[1:])
    )
    memory = NodeMemory(plan, specs, ["a", "a", "b", "b", "b"])
    memory.create({k: AnsweringActor((1, 2, 3) if k == 0 else k != 3) for k in range(5)}, 1.0)
    assert [list(memory.layout(place).links) for place in range(5)] == [[(0, 0)], [(0, 0)], [], [], []]
    assert memory.attach_successor(2, "elsewhere", {}, 1.0)  # it shares nothing
    assert not memory.attach_successor(0, "b", {}, 1.0)  # what it shared is lost
    successor = FakeActor()
    no_holder = {0: successor, 1: AnsweringActor(None)}
    assert not memory.attach_successor(0, "a", no_holder, 1.0)
    assert memory.attach_successor(0, "a", {0: successor, 1: AnsweringActor((1, 2, 3))}, 1.0)
    assert successor.calls == {"attach_memory": ((1, 2, 3),)}


@pytest.mark.slow
def test_what_a_replica_prints_is_in_the_run_directory(tmp_path):
    from talking_envs import Talking

    tessera.train(
        tessera.A2C(unroll=8, widths=(8,)), Talking, "single_learner_coarse:actors=2", steps=512, envs=8,
        engine="ray", run_dir=tmp_path, eval_episodes=1, quiet=True,
    )  # fmt: skip
    for k in range(2):
        assert "hello from an environment" in (tmp_path / "logs" / f"env+act-{k}.log").read_text()


def test_a_plan_without_room_is_refused_at_once_with_asked_and_available():
    with pytest.raises(TesseraError, match=r"Asked: 30 × env\+act with 1 CPU each.*node 0: 8 CPU; node 1: 8 CPU"):
        make_engine(tessera.A2C(), "single_learner_coarse:actors=30", envs=60, groups=30)


def test_a_policy_with_one_shared_memory_is_refused():
    with pytest.raises(TesseraError, match=r"hogwild.*use --engine local"):
        make_engine(tessera.A2C(), "hogwild")


STRANGER = """
import sys
import ray
try:
    ray.init(address=sys.argv[1], logging_level="ERROR")
    print("in", ray.get(ray.remote(lambda: 1).remote(), timeout=20))
except Exception as error:
    print("refused", type(error).__name__)
"""


def test_a_client_without_the_token_cannot_submit(nodes, tmp_path):
    variables = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH")}
    variables |= {"HOME": str(tmp_path), "RAY_NUM_REDIS_GET_RETRIES": "2"}
    command = [sys.executable, "-c", STRANGER, nodes["address"]]
    for more in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}):
        done = subprocess.run(command, env=variables | more, capture_output=True, text=True, timeout=120, check=False)
        assert "refused" in done.stdout, done.stdout + done.stderr
        assert "in" not in done.stdout.split()
    known = variables | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": Path(nodes["token"]).read_text()}
    done = subprocess.run(command, env=known, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["in", "1"], done.stdout + done.stderr


def assert_loopback_only(nodes: dict[str, Any]) -> None:
    pids = {pid for node in nodes["nodes"] for pid in cluster._members(node["pid"])}
    public = {f"socket:[{inode}]": address for inode, address in listening() if not address.startswith(LOOPBACK)}
    for pid in pids:
        found = {public[name] for name in opened_by(pid) if name in public}
        assert not found, f"process {pid} listens beyond loopback, at {found}"


def test_learners_that_all_reduce_listen_on_loopback(nodes):
    engine = make_engine(ALGORITHMS["a2c"], "multi_learner:learners=2")
    try:
        engine.start()
        engine.advance(2)
        assert_loopback_only(nodes)
    finally:
        engine.close()


def test_learners_that_would_listen_in_public_are_refused_unless_the_network_is_trusted(monkeypatch):
    from tessera.engines.ray_backend.exposure import check_exposure

    def plan(policy: str) -> Any:
        return prepare_plan(ALGORITHMS["a2c"], "gymnax:CartPole-v1", policy, envs=16, engine="ray")[2]

    check_exposure(plan("multi_learner:learners=2"), trust_network=False)
    monkeypatch.setattr("socket.gethostbyname", lambda name: "192.0.2.2")
    with pytest.raises(TesseraError, match=r"listen at 192\.0\.2\.2.*--trust-network"):
        check_exposure(plan("multi_learner:learners=2"), trust_network=False)
    check_exposure(plan("multi_learner:learners=2"), trust_network=True)
    check_exposure(plan("central:workers=2"), trust_network=False)


def test_the_cluster_listens_on_loopback_and_its_token_is_the_users_alone(nodes):
    assert_loopback_only(nodes)
    assert cluster.session_folder().parent.stat().st_mode & 0o077 == 0
    assert Path(nodes["token"]).stat().st_mode & 0o077 == 0
    assert json.loads((cluster.folder() / "cluster.json").read_text())["address"].startswith("127.0.0.1:")


LOOPBACK = ("0100007F", "0" * 16 + "FFFF0000" + "0100007F", "0" * 24 + "01000000")
"""127.0.0.1 as in /proc/net/tcp; 127.0.0.1 and ::1 as in /proc/net/tcp6."""


def opened_by(pid: int) -> Iterator[str]:
    """Files and sockets of a process, which may end or close any of them meanwhile."""
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{name}")


def listening() -> Iterator[tuple[str, str]]:
    """Inode and address of every listening socket."""
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                yield fields[9], fields[1]


@pytest.mark.parametrize(
    ("host", "mode", "words"),
    [("10.1.2.3", "disabled", "would let anybody run code"), ("everywhere", "token", "give the address")],
)
def test_a_cluster_does_not_listen_in_public_without_a_token(host, mode, words):
    with pytest.raises(TesseraError, match=words):
        cluster.check_host(host, mode)


@pytest.mark.parametrize(("address", "words"), [("127.0.0.1:1", "no Ray cluster answers"), ("ray://x:1", "give HOST")])
def test_an_address_at_which_nothing_listens_is_refused_at_once(address, words):
    from tessera.engines.ray import _check_reachable

    with pytest.raises(TesseraError, match=words):
        _check_reachable(address)


def test_a_second_cluster_is_refused(nodes):
    with pytest.raises(TesseraError, match="is up already"):
        cluster.up(1, cpus=1, memory=128 << 20)


def test_items_are_mapped_by_tasks_and_those_of_a_killed_worker_are_mapped_again(tmp_path):
    from tessera.engines.ray import RayEngine

    def map_items(function: Any, items: Any, **options: Any) -> Any:
        call = functools.partial(function, folder=str(tmp_path))
        return RayEngine.map_reduce(call, list, items, workers=2, note=notes.append, **options)

    notes: list[str] = []
    assert map_items(mapped.killed_once, range(4)) == [0, 10, 20, 30]
    assert len(notes) == 1
    assert notes[0].startswith("item 1 of 4 (1) was lost, because its worker was lost (WorkerCrashedError")
    assert map_items(mapped.straggling, range(4), first=3) == [1, 2, 3]
    with pytest.raises(RunFailed, match=r"item 2 of 4 \(2\) cannot be mapped: ValueError: two is too much"):
        tessera.map_reduce(mapped.raising, list, range(4), engine="ray", workers=2)
    with pytest.raises(RunFailed, match=r"item 0 of 1 \(7\) was lost 1 time, the last time because its worker was"):
        tessera.map_reduce(mapped.killed, list, [7], engine="ray", retries=0)
