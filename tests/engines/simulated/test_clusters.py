"""Plans on several nodes, worked out by hand; and large plans, of which some nodes stand for all."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tessera import A2C, DQN, TesseraError
from tessera.channels.rpc.outbox import INLINE_BYTES
from tessera.engines.simulated.cluster import Cluster, NodeKind, place_replicas
from tessera.engines.simulated.costs import Costs, LinkCosts, Timing, Work
from tessera.engines.simulated.deployment import on_cluster
from tessera.engines.simulated.engine import SimulatedEngine
from tessera.engines.simulated.exchanges import PeerRing
from tessera.engines.simulated.network import NetworkCard, transmit
from tessera.engines.simulated.prediction import Prediction
from tessera.engines.simulated.simulated_node import SimulatedNode
from tessera.engines.simulated.virtual_time import Cores, VirtualTime
from tessera.planning.prepare import prepare_plan

QUEUE = A2C(unroll=4, widths=(8,))
ACTING, LEARNING = "act observed -> actions", "grad batch+summary -> gradients"
APPLYING, STEPPING = "apply gradients+squares -> state", "env actions -> timesteps"


def costs(acting: float = 0.0, learning: float = 0.0, applying: float = 0.0, **more: Any) -> Costs:
    """Seconds of a step, a gradient and applying it, however many environments."""
    return Costs({ACTING: ((1, acting),), LEARNING: ((1, learning),), APPLYING: ((1, applying),)}, **more)


def engine_for(
    policy: str, given: Costs, kinds: tuple[NodeKind, ...], envs: int = 2, most: int = 500, algorithm: Any = QUEUE,
    env: str = "gymnax:CartPole-v1", lag: int | None = 0,
) -> SimulatedEngine:  # fmt: skip
    planned = prepare_plan(algorithm, env, policy, envs=envs, groups=envs, engine="ray", lag=lag)
    bound, environment, plan = planned
    return SimulatedEngine(plan, bound, environment, given, deployment=on_cluster(plan, Cluster(kinds), most))


def seconds(prediction: Prediction) -> float:
    """Of one update."""
    return 1 / prediction.updates_per_second


def bytes_of(engine: SimulatedEngine, stream: str) -> int:
    """Of one message."""
    return next(link.nbytes for (k, _), link in engine.links.items() if engine.plan.channels[k].stream == stream)


def test_where_the_network_is_slow_bytes_decide():
    bandwidth, latency = 100.0, 0.25
    node = NodeKind(count=2, cores=1, bandwidth=bandwidth, latency=latency)
    engine = engine_for("single_learner_coarse:actors=1", costs(acting=0.5, learning=3.0), (node,))
    moved = bytes_of(engine, "experience") + bytes_of(engine, "params")
    assert moved > 500
    expected = 4 * 0.5 + 3.0 + moved / bandwidth + 2 * latency
    found = engine.run(20)
    assert seconds(found) == pytest.approx(expected, rel=1e-6)
    sent = {use.holds: use.sent * seconds(found) for use in found.nodes}
    assert sent == {
        "1 × env+act": pytest.approx(bytes_of(engine, "experience"), rel=0.01),
        "1 × store+grad+apply": pytest.approx(bytes_of(engine, "params"), rel=0.01),
    }


def test_a_node_at_half_speed_takes_twice_as_long():
    kinds = (NodeKind(name="fast", cores=1), NodeKind(name="slow", cores=1, speed=0.5), NodeKind(name="last", cores=1))
    given = costs(acting=0.5, learning=3.0)
    assert seconds(engine_for("single_learner_coarse:actors=2", given, kinds).run(10)) == pytest.approx(4.0 + 3.0)
    alike = (NodeKind(cores=1, count=3),)
    assert seconds(engine_for("single_learner_coarse:actors=2", given, alike).run(10)) == pytest.approx(2.0 + 3.0)


def test_accelerators_have_a_speed_of_their_own():
    kinds = [NodeKind(cores=1, accelerators=1, speed=0.5, accelerator_speed=speed) for speed in (0.0, 2.0)]
    ends = []
    for kind in kinds:
        clock = VirtualTime()
        node = SimulatedNode(clock, kind, Costs())
        node.devices[0].run(1.0, lambda clock=clock: ends.append(clock.now), 0)
        while clock.step():
            pass
    assert ends == [2.0, 0.5]


@pytest.mark.parametrize(("actors", "messages"), [(2, 2.0), (3, 3.0), (8, 4.0), (12, 4.0)])
def test_the_card_of_the_learner_saturates_at_four_actors(actors, messages):
    """Each sends a message a second, and the card takes four."""
    nbytes = bytes_of(engine_for("single_learner_coarse:actors=2", Costs(), (NodeKind(cores=3),)), "experience")
    kinds = (NodeKind(count=actors, cores=1), NodeKind(name="learner", cores=1, bandwidth=4.0 * nbytes))
    policy = f"single_learner_coarse:actors={actors},mode=async"
    found = engine_for(policy, costs(acting=0.25), kinds, envs=actors, lag=None).run(30)
    assert found.updates_per_second * actors == pytest.approx(messages, rel=0.03)
    learner = next(use for use in found.nodes if use.kind == "learner")
    assert learner.received / (4 * nbytes) == pytest.approx(messages / 4, rel=0.05)
    if actors > 4:
        assert found.bottleneck == "network card of 1 × store+grad+apply"


def test_messages_between_nodes_cost_what_remote_ones_do():
    near, far = LinkCosts(cpu_per_message=0.1), LinkCosts(cpu_per_message=1.0)
    given = costs(acting=0.5, learning=3.0, links=near, remote_links=far)
    policy = "single_learner_coarse:actors=1"
    # experience and params, each at both ends
    assert seconds(engine_for(policy, given, (NodeKind(cores=2),)).run(10)) == pytest.approx(5.0 + 4 * 0.1)
    assert seconds(engine_for(policy, given, (NodeKind(cores=1, count=2),)).run(10)) == pytest.approx(5.0 + 4 * 1.0)


@pytest.mark.parametrize(("acting", "calls"), [(0.002, 1), (0.05, 2)])
def test_params_that_travel_with_replies_take_no_call(acting, calls):
    """An actor that sends every 50 ms or more often has them with the reply; any other by a call (decision 0058)."""
    given = costs(acting=acting, remote_links=LinkCosts(cpu_per_message=0.001))
    nodes = (NodeKind(cores=1, count=2),)
    found = engine_for("single_learner_coarse:actors=1,mode=async", given, nodes, lag=None).run(40)
    assert found.busy["store+grad+apply"] * seconds(found) == pytest.approx(calls * 0.001, rel=0.01)
    assert seconds(found) == pytest.approx(4 * acting + calls * 0.001, rel=0.05)


def apart(
    policy: str, given: Costs, actors: int, lag: int | None = 0, algorithm: Any = QUEUE, own: int = 0, **node: Any
) -> SimulatedEngine:
    """A learner with two cores on a node that has room for `own` actors, and so many actors on each of two others."""
    replicas = 2 * actors + own
    name = f"single_learner_coarse:actors={replicas}{policy}"
    bound, environment, plan = prepare_plan(
        algorithm, "gymnax:CartPole-v1", name, envs=replicas, groups=replicas, engine="ray", lag=lag
    )
    learner = dataclasses.replace(plan.fragments[1], cores=(2,))
    plan = dataclasses.replace(plan, fragments=(plan.fragments[0], learner))
    kinds = (NodeKind(name="learner", cores=2 + own, **node), NodeKind(name="actors", count=2, cores=actors, **node))
    return SimulatedEngine(plan, bound, environment, given, deployment=on_cluster(plan, Cluster(kinds)))


@pytest.mark.parametrize("width", [8, 400])
@pytest.mark.parametrize("policy", ["", ",mode=async"])
def test_params_go_through_a_card_once_for_each_node(policy, width):
    """Whether they are small, so that they travel with a call, or large."""
    algorithm = dataclasses.replace(QUEUE, widths=(width, width))
    engine = apart(policy, costs(acting=0.5), 3, None if policy else 0, algorithm)
    nbytes = bytes_of(engine, "params")
    assert (nbytes >= INLINE_BYTES) == (width == 400)
    found = engine.run(20, 5)
    sent = {use.kind: use.sent * seconds(found) for use in found.nodes}
    assert sent["learner"] == pytest.approx(2 * nbytes, rel=0.05)
    assert sum(use.alike * use.received for use in found.nodes if use.kind == "actors") == pytest.approx(
        2 * nbytes / seconds(found), rel=0.05
    )


@pytest.mark.parametrize("actors", [1, 3])
def test_a_learner_makes_one_call_for_each_node_and_one_actor_there_passes_params_on(actors):
    given = costs(acting=0.5, links=LinkCosts(cpu_per_message=0.001), remote_links=LinkCosts(cpu_per_message=0.1))
    found = apart("", given, actors).run(10)
    # a call to each of two nodes, and one of each actor; there one takes the call, and the others look into memory
    assert found.busy["store+grad+apply"] * seconds(found) == pytest.approx(2 * 0.1 + 2 * actors * 0.1)
    playing = 4 * 0.5 + 0.1
    work = found.busy["env+act"] * seconds(found) * 2 * actors
    assert work == pytest.approx(2 * actors * playing + 2 * 0.1 + 2 * (actors - 1) * 0.001)


def test_actors_on_the_node_of_the_learner_find_params_in_memory():
    given = costs(acting=0.5, links=LinkCosts(cpu_per_message=0.001), remote_links=LinkCosts(cpu_per_message=0.1))
    found = apart("", given, 1, own=1).run(10)
    # experience of two actors and of one on the same node; params by two calls, and once into memory
    expected = 2 * 0.1 + 0.001 + 2 * 0.1 + 0.001
    assert found.busy["store+grad+apply"] * seconds(found) == pytest.approx(expected)


def test_an_all_reduce_goes_round_in_a_ring():
    card = NetworkCard(bandwidth=10.0, latency=0.5)
    ring = PeerRing(4, ((card, 1), (card, 2)))
    assert ring.bytes_of_peer(20) == pytest.approx(2 * 3 / 4 * 20)
    assert ring.seconds(20) == pytest.approx(2 * 30 / 10 + 6 * 0.5)  # two peers share a card
    assert PeerRing(4, ((card, 1),), gathers=True).seconds(20) == pytest.approx(3 * 20 / 10 + 3 * 0.5)
    node = NodeKind(count=2, cores=1, bandwidth=1000.0)
    engine = engine_for("multi_learner:learners=2", costs(acting=0.5, learning=3.0), (node,))
    moved = bytes_of(engine, "gradients")  # of two peers each passes on one half twice
    assert seconds(engine.run(20)) == pytest.approx(5.0 + moved / 1000.0, rel=0.01)


def test_a_message_passes_both_cards_and_those_behind_it_wait():
    time, ends = VirtualTime(), []
    slow, fast = NetworkCard(10.0, 1.0), NetworkCard(20.0)
    for _ in range(2):
        transmit(time, slow, fast, 100, 100, 0.0, lambda: ends.append(time.now))
    transmit(time, NetworkCard(50.0), fast, 100, 100, 5.0, lambda: ends.append(time.now))
    while time.step():
        pass
    # the first goes out until 10 and is there at 11, the second at 21; the third finds the fast card taken until 6
    assert ends == [11.0, 11.0, 21.0]


def test_threads_beyond_the_cores_slow_each_other_down_as_was_measured():
    time, ends = VirtualTime(), []
    cores = Cores(time, 2, slowdown=(1.0, 0.8, 0.5))
    for work in (1.0, 2.0, 2.0, 2.0):
        cores.run(work, lambda: ends.append(time.now))
    while time.step():
        pass
    # beyond the table its last value holds: four threads run at 2/4 of 0.5, then three at 2/3 of it
    assert ends == pytest.approx([4.0, 7.0, 7.0, 7.0])


def test_hundreds_of_jobs_share_cores_in_equal_parts():
    time, ends = VirtualTime(), []
    cores = Cores(time, 10, speed=2.0)
    for k in range(500):
        cores.run(1.0 if k % 2 else 2.0, lambda: ends.append(time.now))
    while time.step():
        pass
    # the short ones need 250 / 2 of 10 / 500 each at speed 2; then the others have twice the part for what is left
    assert ends[249] == pytest.approx(0.5 * 50)
    assert ends[499] == pytest.approx(0.5 * 50 + 0.5 * 25)


def test_replicas_are_spread_over_nodes_and_the_largest_are_placed_first():
    _, _, plan = prepare_plan(QUEUE, "gymnax:CartPole-v1", "single_learner_coarse:actors=5", envs=5, engine="ray")
    cluster = Cluster((NodeKind(count=3, cores=2),))
    assert place_replicas(plan, cluster) == [0, 1, 2, 0, 1, 2]
    learner = dataclasses.replace(plan.fragments[1], cores=(2,))
    plan = dataclasses.replace(plan, fragments=(plan.fragments[0], learner))
    assert place_replicas(plan, Cluster((NodeKind(count=4, cores=2),))) == [1, 2, 3, 1, 2, 0]
    with pytest.raises(TesseraError, match=r"no room.*Asked: 5 × env\+act with 1 CPU each.*Available: 3 × node with 2"):
        place_replicas(plan, cluster)


def test_too_little_memory_is_refused_with_asked_and_available():
    with pytest.raises(
        TesseraError, match=r"kind 'small' has too little memory for 1 × .*: asked .* kB, available 10 B"
    ):
        engine_for("single_learner_coarse:actors=1", costs(), (NodeKind(name="small", count=2, cores=1, memory=10),))


@pytest.mark.parametrize(("gradients", "pull", "sent"), [(10, 25, 2), (10, 4, 1), (10, 10, 1)])
def test_params_are_sent_after_as_many_gradients_where_one_stands_for_several(gradients, pull, sent):
    policy = f"central:workers={8 * gradients},mode=async,pull={pull}"
    nodes = (NodeKind(count=8 * gradients, cores=1), NodeKind(name="server", cores=1))
    deployment = engine_for(policy, Costs(), nodes, 8 * gradients, most=8, lag=None).deployment
    k = next(k for k, channel in enumerate(deployment.plan.channels) if channel.stream == "params")
    assert deployment.plan.channels[k].discipline.every == sent
    # of each message the server sends as many as there are in the time that it stands for
    assert gradients * deployment.publications(k) == pytest.approx(gradients * sent / pull)


def test_params_that_are_sent_now_and_then_get_as_old_in_a_large_plan():
    """All push at once, and 200 gradients are two rounds: the first after new params was begun with those before."""
    found = {}
    for most in (500, 20):
        nodes = (NodeKind(count=100, cores=1), NodeKind(name="server", cores=1))
        policy = "central:workers=100,mode=async,pull=200"
        engine = engine_for(policy, costs(1.0, 1.0, 1e-4), nodes, 100, most, lag=None)
        learners = engine.plan.fragments[0].replicas
        flow = engine.run(20 * learners, 10 * learners).flows["gradients"]
        found[most] = flow.lag_mean, flow.lag_max
    assert found == {500: (100, 200), 20: (100, 200)}


TAIL = tuple(Work(0.001 * (1 + 20 / (k + 1)), 0.001) for k in range(64))
DISCIPLINES = {
    "all are waited for": ("single_learner_coarse:actors={n}", 20),
    "as they come": ("single_learner_coarse:actors={n},mode=async,take=16", 60),
    "among peers": ("multi_learner:learners={n}", 6),
    "to a server": ("central:workers={n}", 6),
    "to a server, one by one": ("central:workers={n},mode=async", 60),
    "at every step": ("single_learner_fine:actors={n}", 3),
    "at every step, apart": ("split_inference:workers={n}", 3),
    "through stores": ("distributed_replay:actors={n},stores=10,mode=async", 10),
}


def both_ways(discipline: str, replicas: int, sampled: int) -> list[Prediction]:
    """With every replica simulated, and with some."""
    policy, updates = DISCIPLINES[discipline]
    replay = DQN(n_step=1, unroll=4, draws=2, batch=4 * replicas, capacity=64 * replicas, warmup=2, widths=(8,))
    given = costs(
        0.0005, 0.02, 0.002, links=LinkCosts(cpu_per_message=1e-5),
        remote_links=LinkCosts(latency=2e-4, cpu_per_message=5e-5, cpu_per_byte=1e-9),
    )  # fmt: skip
    env = "gymnax:CartPole-v1"
    if discipline == "all are waited for":  # the slowest of all decides: steps with a long tail
        env, given = "CartPole-v1", dataclasses.replace(given, timings={STEPPING: (Timing(1, 1, TAIL),)})
    node = NodeKind(count=replicas // 4 + 3, cores=5, bandwidth=2e7, latency=5e-5)
    found = []
    for most in (10**6, sampled):
        engine = engine_for(
            policy.format(n=replicas), given, (node,), replicas, most,
            replay if discipline == "through stores" else QUEUE, env, lag=None,
        )  # fmt: skip
        solo = len(engine.replicas) - 1 if engine.plan.solo else 0
        found.append(engine.run(max(updates, 4 * solo), max(3, updates // 2, 3 * solo)))
    return found


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_some_nodes_stand_for_all(discipline):
    exact, sampled = both_ways(discipline, 100, 40)
    assert sampled.simulated < 0.6 * exact.simulated
    assert sampled.replicas == exact.replicas == exact.simulated
    assert sampled.steps_per_second == pytest.approx(exact.steps_per_second, rel=0.05)
    for stream, flow in exact.flows.items():
        assert sampled.flows[stream].lag_mean == pytest.approx(flow.lag_mean, rel=0.2, abs=0.3)
        rate = flow.bytes / exact.seconds
        assert sampled.flows[stream].bytes / sampled.seconds == pytest.approx(rate, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_some_nodes_stand_for_all_of_five_hundred(discipline):
    exact, sampled = both_ways(discipline, 500, 96)
    assert sampled.steps_per_second == pytest.approx(exact.steps_per_second, rel=0.05)


def test_a_large_plan_is_predicted_the_same_twice():
    node = NodeKind(count=700, cores=4)
    given = costs(0.0005, 0.02, 0.002, timings={STEPPING: (Timing(1, 1, TAIL),)})
    found = [
        engine_for("single_learner_coarse:actors=2000", given, (node,), 2000, env="CartPole-v1").run(3, 2)
        for _ in range(2)
    ]
    assert found[0] == found[1]
    assert found[0].simulated < 200
    assert found[0].replicas == 2001
