"""What planning, wiring and one round of messages cost as replicas grow, without starting any: is it linear?

    python benchmarks/scale.py
    python benchmarks/scale.py --planned 10 100 1000 --exchanged 10 100 --peers 10 30
    python benchmarks/scale.py --only-simulated --simulated 100 1000 10000

`plan` makes the plan, for one environment a replica. `links` makes the routes and describes every link, and lays all of
them out in a shared memory. `first port` and `ports` open the ends of one learner, and of all replicas, on links within
this process. `round` is one message of every replica through such links: all send experience, the learner takes what it
gets and publishes params, and all take those. `one by one` is the same, but each receiver looks after every message,
which come in no order: what a learner that waits does meanwhile.

A slope is that of time over replicas, both as logarithms, from one size to the next: 1 is linear. Small sizes have
slopes below 1, because of what does not depend on replicas. Plans whose replicas all send to all others are shown by
themselves: the number of messages is quadratic there, whatever a message costs. Times are of the processor, and
the best of several.

`simulated` predicts A2C and DQN on CartPole with so many nodes of 4 cores, one replica on each and 3 cores idle, with
costs that are made up: seconds of planning and simulating together, replicas that were simulated, the most memory of
this process so far, and whether a second time gave the same answer.
"""

import argparse
import gc
import itertools
import math
import random
import resource
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

import tessera
from tessera import policies
from tessera.channels.in_process import InProcessLink
from tessera.channels.inboxes import Versions
from tessera.channels.link_specs import make_link_specs
from tessera.channels.port import ReplicaPort
from tessera.channels.rings import ArenaLayout, lay_out
from tessera.channels.routes import Route, make_routes
from tessera.engines.simulated.cluster import Cluster, NodeKind
from tessera.engines.simulated.costs import Costs, LinkCosts
from tessera.graph.disciplines import FirstCome, InTurn, Newest, in_flight
from tessera.graph.groups import Needs
from tessera.graph.plan import Plan, make_plan
from tessera.graph.policy import Policy
from tessera.planning.prepare import prepare_plan
from tessera.planning.simulate import Simulation, simulate

LINEAR = 1.1
"""The largest slope that counts as linear."""
JUDGED_FROM = 100
"""Slopes are judged from this number of replicas on."""
REPETITIONS, SECONDS = 15, 1.0
"""Each time is the best of so many, or of as many as fit into so many seconds; of two at least."""
WIDTH = 4
"""Numbers of a group in a message."""

Policies = dict[str, Callable[[int], Policy]]

TO_LEARNERS: Policies = {
    "coarse": lambda n: policies.get("single_learner_coarse", actors=n),
    "coarse, async, take 32": lambda n: policies.get(
        "single_learner_coarse", actors=n, mode="async", take=min(32, n), lag=1
    ),
    "2 learners": lambda n: policies.get("multi_learner_coarse", actors=n, learners=2),
    "central, async": lambda n: policies.get("central", workers=n, mode="async"),
    "replay, n/10 stores": lambda n: policies.get("distributed_replay", actors=n, stores=max(1, n // 10), mode="async"),
}
AMONG_PEERS: Policies = {
    "central": lambda n: policies.get("central", workers=n),
    "n learners": lambda n: policies.get("multi_learner", learners=n),
}


SIMULATED: dict[str, str] = {
    "coarse": "single_learner_coarse:actors={n}",
    "coarse, async": "single_learner_coarse:actors={n},mode=async",
    "coarse, async, take 32": "single_learner_coarse:actors={n},mode=async,take=32",
    "n learners": "multi_learner:learners={n}",
    "central": "central:workers={n}",
    "central, async": "central:workers={n},mode=async",
    "fine": "single_learner_fine:actors={n}",
    "split inference": "split_inference:workers={n}",
    "replay, n/10 stores": "distributed_replay:actors={n},stores={stores},mode=async",
}
MADE_UP = Costs(
    {
        "env actions -> timesteps": ((1, 1e-4),),
        "act observed -> actions": ((1, 2e-4),),
        "grad batch+summary -> gradients": ((1, 5e-3), (10000, 0.5)),
        "apply gradients+squares -> state": ((1, 1e-3),),
    },
    remote_links=LinkCosts(latency=3e-4, cpu_per_message=1e-4, cpu_per_byte=1e-9),
)


class Count(NamedTuple):
    """Stands for the clock of params."""

    applies: np.ndarray

    def applied(self) -> int:
        """Gradients that were applied."""
        return int(self.applies)


class View(NamedTuple):
    """Stands for published params."""

    clock: Count
    params: np.ndarray


class Wired(NamedTuple):
    """A plan whose replicas all have their ports, in this process."""

    plan: Plan
    routes: list[Route]
    ports: list[list[ReplicaPort]]
    """By fragment and number."""


def plan_for(policy: Policy, replicas: int) -> Plan:
    """A plan for a cluster that is not there: replicas that ask for no cores of their own fit on any machine."""
    batch = replicas if "replay" in policy.name else None
    needs = Needs("small", "small", device_env=True, batch=batch, priorities=batch is not None, absorbs=False)
    return make_plan(policy, needs, replicas, engine="ray")


def describe_links(plan: Plan) -> ArenaLayout:
    """All that an engine derives from a plan before it starts processes."""
    whole = {c.slot: jax.ShapeDtypeStruct((plan.groups, WIDTH), np.float32) for c in plan.channels}
    return lay_out(plan, make_link_specs(plan, make_routes(plan, tessera.A2C()), whole, None), None)


def links_of(plan: Plan, routes: list[Route]) -> dict[tuple[int, int], InProcessLink]:
    """Every link of a plan, within this process."""
    return {
        (k, lane): InProcessLink(len(readers), in_flight(c.discipline), isinstance(c.discipline, Newest))
        for k, (c, route) in enumerate(zip(plan.channels, routes, strict=True))
        for lane, (_, readers) in route.lanes().items()
    }


def open_port(plan: Plan, routes: list[Route], links: dict[tuple[int, int], Any], i: int, number: int) -> ReplicaPort:
    return ReplicaPort(plan, routes, i, number, Versions(1, 1), lambda k, lane: links[k, lane], lambda _: None)


def open_first(plan: Plan) -> ReplicaPort:
    """The routes, and the ends of one learner."""
    routes = make_routes(plan, tessera.A2C())
    return open_port(plan, routes, links_of(plan, routes), plan.home("apply"), 0)


def wire(plan: Plan) -> Wired:
    """The routes, and the ends of all replicas."""
    routes = make_routes(plan, tessera.A2C())
    links = links_of(plan, routes)
    ports = [[open_port(plan, routes, links, i, r) for r in range(f.replicas)] for i, f in enumerate(plan.fragments)]
    return Wired(plan, routes, ports)


def message(route: Route, p: int, version: int) -> Any:
    """What a replica sends: one row for each of its groups, or params."""
    if route.channel.stream == "params":
        return View(Count(np.asarray(version)), np.zeros(WIDTH, np.float32))
    rows = len(route.made(p)) if route.channel.stream != "gradients" else 1
    return np.zeros((rows, WIDTH), np.float32)


def begin(wired: Wired) -> None:
    """Send what receivers begin with or trail behind by."""
    for k, route in enumerate(wired.routes):
        first = int(isinstance(route.channel.discipline, Newest)) or route.channel.lag
        for p, port in enumerate(wired.ports[route.channel.source]):
            for _ in range(first):
                port.publish(k, message(route, p, 0))


def take(route: Route, port: ReplicaPort, k: int) -> bool:
    """Receive what is there; whether anything was."""
    arrived, _ = port.receive(k)
    if arrived and isinstance(route.channel.discipline, FirstCome | InTurn):
        while port.receive(k)[0]:
            pass
    return arrived


def play_round(wired: Wired, versions: Iterator[int], one_by_one: bool) -> None:
    """One message of every replica through each channel, in the order of the graph."""
    version = next(versions)
    for k, route in enumerate(wired.routes):
        senders = list(enumerate(wired.ports[route.channel.source]))
        receivers = wired.ports[route.channel.target]
        waiting = dict(enumerate(receivers))
        if one_by_one:
            random.Random(version).shuffle(senders)
        for p, port in senders:
            if not port.send(k, message(route, p, version)):
                raise RuntimeError(f"no room for {route.channel.stream}: what was sent before was not taken")
            for q in list(waiting) if one_by_one and len(receivers) == 1 else ():
                if take(route, receivers[q], k) and not isinstance(route.channel.discipline, FirstCome | InTurn):
                    del waiting[q]
        for port in waiting.values():
            take(route, port, k)


def best(action: Callable[[], Any]) -> float:
    """Processor seconds of the fastest of several repetitions; as in timeit, without the garbage collector."""
    times: list[float] = []
    gc.disable()
    try:
        while len(times) < 2 or (len(times) < REPETITIONS and sum(times) < SECONDS):
            gc.collect()
            begun = time.process_time()
            made = action()
            times.append(time.process_time() - begun)
            del made
    finally:
        gc.enable()
    return min(times)


def time_planning(make_policy: Callable[[int], Policy], replicas: int) -> dict[str, float]:
    """Seconds of each step up to where processes would be started."""
    plan = plan_for(make_policy(replicas), replicas)
    return {
        "plan": best(lambda: plan_for(make_policy(replicas), replicas)),
        "links": best(lambda: describe_links(plan)),
        "first port": best(lambda: open_first(plan)),
        "ports": best(lambda: wire(plan)),
    }


def time_rounds(make_policy: Callable[[int], Policy], replicas: int) -> dict[str, float]:
    """Seconds of one message of every replica."""
    times = {}
    for name, one_by_one in (("round", False), ("one by one", True)):
        wired = wire(plan_for(make_policy(replicas), replicas))
        begin(wired)
        times[name] = best(partial(play_round, wired, itertools.count(1), one_by_one))
    return times


def measure(
    measured: Callable[[Callable[[int], Policy], int], dict[str, float]], chosen: Policies, sizes: list[int]
) -> dict[str, list[float]]:
    """Policy and step -> seconds at each size."""
    rows: dict[str, list[float]] = {}
    for policy, make_policy in chosen.items():
        for size in sizes:
            for step, seconds in measured(make_policy, size).items():
                rows.setdefault(f"{policy:24s}{step}", []).append(seconds)
    return rows


def simulate_one(policy: str, replicas: int) -> Simulation:
    """Plan and simulate so many replicas, each on a node of its own."""
    filled = policy.format(n=replicas, stores=max(1, replicas // 10))
    replay = tessera.DQN(n_step=1, unroll=8, draws=2, batch=4 * replicas, capacity=64 * replicas, warmup=2)
    algorithm = replay if "replay" in policy else tessera.A2C(unroll=32)
    bound, env, plan = prepare_plan(
        algorithm, "gymnax:CartPole-v1", filled, envs=replicas, groups=replicas, engine="ray"
    )
    total = sum(fragment.replicas for fragment in plan.fragments)
    node = NodeKind(count=total, cores=4, bandwidth=1.25e9, latency=5e-5)
    return simulate(plan, bound, env, MADE_UP, cluster=Cluster((node,)))


def show_simulated(sizes: list[int]) -> None:
    """Print what simulating takes, and whether it gives the same answer twice."""
    print("\nsimulating: seconds, replicas simulated, steps a second, what limits, memory, the same twice")
    for name, policy in SIMULATED.items():
        for size in sizes:
            begun = time.process_time()
            first = simulate_one(policy, size)
            seconds = time.process_time() - begun
            same = simulate_one(policy, size).predictions == first.predictions
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(
                f"{name:24s}{size:>8,}{seconds:8.1f} s{first.first.simulated:>6}{first.steps_per_second:>14,.0f}  "
                f"{first.first.bottleneck:36s}{memory:6.0f} MB  {'yes' if same else 'no'}",
                flush=True,
            )


def slopes_of(sizes: list[int], seconds: list[float]) -> list[float]:
    """Slopes from each size to the next."""
    pairs = list(zip(sizes, seconds, strict=True))
    return [math.log(y / x) / math.log(b / a) for (a, x), (b, y) in itertools.pairwise(pairs)]


def show(title: str, sizes: list[int], rows: dict[str, list[float]]) -> list[str]:
    """Print a table; the rows that are steeper than linear, in words."""
    print(f"\n{title}: milliseconds, and slopes between sizes")
    pairs = [f"{a}-{b}" for a, b in itertools.pairwise(sizes)]
    print(f"{'replicas':36s}" + "".join(f"{n:>10,}" for n in sizes) + "".join(f"{pair:>12s}" for pair in pairs))
    steep = []
    for name, seconds in rows.items():
        slopes = slopes_of(sizes, seconds)
        print(f"{name:36s}" + "".join(f"{1000 * s:10.2f}" for s in seconds) + "".join(f"{s:12.2f}" for s in slopes))
        for size, pair, slope in zip(sizes, pairs, slopes, strict=False):
            if size >= JUDGED_FROM and slope > LINEAR:
                steep.append(f"{' '.join(name.split())}, {pair}: {slope:.2f}")
    return steep


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--planned", type=int, nargs="+", default=[10, 100, 1000, 10000], help="replicas to plan for")
    parser.add_argument("--exchanged", type=int, nargs="+", default=[10, 100, 1000], help="replicas that send")
    parser.add_argument("--peers", type=int, nargs="*", default=[10, 30, 100, 300], help="peers that all send to all")
    parser.add_argument("--simulated", type=int, nargs="*", default=[100, 1000, 10000], help="replicas to simulate")
    parser.add_argument("--only-simulated", action="store_true", help="leave out all else")
    options = parser.parse_args()
    if options.simulated:
        show_simulated(options.simulated)
    if options.only_simulated:
        return
    steep = show("planning and wiring", options.planned, measure(time_planning, TO_LEARNERS, options.planned))
    steep += show("one message of each", options.exchanged, measure(time_rounds, TO_LEARNERS, options.exchanged))
    if options.peers:
        show("all to all, planning", options.peers, measure(time_planning, AMONG_PEERS, options.peers))
        show("all to all, messages", options.peers, measure(time_rounds, AMONG_PEERS, options.peers))
    print(f"\nsteeper than {LINEAR} from {JUDGED_FROM} replicas on: {'; '.join(steep) or 'none'}")


if __name__ == "__main__":
    main()
