"""Which distribution policy wins at 1 to 10,000 nodes, where each stops scaling and why; all of it simulated.

    python benchmarks/scaling.py                                     all systems
    python benchmarks/scaling.py --algorithms ppo es --nodes 1 100
    python benchmarks/scaling.py --page                              and write docs/scaling.md with its pictures

Costs are profiles of this machine: saved ones, or taken now (a few minutes each). The nodes are those of
benchmarks/scaling_cluster.toml. With saved profiles the same command gives the same figures.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tyro
from scaling_page import write_page
from scaling_published import beside_published

from tessera import policies, systems
from tessera.algorithms.contract import Algorithm
from tessera.cli.profile import progress_bar
from tessera.engines.simulated.cluster import Cluster, NodeKind
from tessera.engines.simulated.costs import Costs, LinkCosts, Timing, Work
from tessera.engines.simulated.deployment import Deployment, on_cluster
from tessera.engines.simulated.engine import SimulatedEngine
from tessera.engines.simulated.prediction import Prediction
from tessera.errors import TesseraError
from tessera.graph.policy import Cut, Policy
from tessera.planning.cluster_file import load_cluster
from tessera.planning.prepare import prepare_plan
from tessera.planning.simulate import with_calls_of_ray
from tessera.profiling.take import saved_or_taken

CLUSTER = Path(__file__).resolve().with_name("scaling_cluster.toml")
MOST_EXACT = 48
"""Replicas of a plan that are all simulated; of a larger one, about so many are."""
MANY_UPDATES = 1000
"""Where it takes more updates to hear every replica once, so many pass before counting. The learner is busy all the
time then, from the beginning; only lag is not known yet."""
JUDGED = 1000
"""Nodes at which it is asked what limits a policy."""

Sized = Callable[[int, int], Policy]
"""Nodes and cores in all -> a policy."""


@dataclass(frozen=True)
class Case:
    """An algorithm in an environment, and the policies that it may be run with."""

    title: str
    system: str
    settings: Mapping[str, Any]
    env: str
    envs_each: int
    """Environments of each replica that steps some."""
    profiled: tuple[int, ...]
    """Environments that profiles are taken with."""
    candidates: Mapping[str, Sized]

    @property
    def algorithm(self) -> Algorithm:
        """With its settings."""
        found, system = systems.find(self.system)
        options = {} if system is None else dict(system.options)
        return found(**{**options, **self.settings})


def coarse(nodes: int, cores: int) -> Policy:
    """One learner, and actors on all other cores."""
    return policies.parse(f"single_learner_coarse:actors={cores - 1}")


def fine(nodes: int, cores: int) -> Policy:
    """One learner that acts for all, and environments on all other cores."""
    return policies.parse(f"single_learner_fine:actors={cores - 1}")


def peers(nodes: int, cores: int) -> Policy:
    """A learner on every core, with its own environments."""
    return policies.parse(f"multi_learner:learners={cores}")


def learner_each(nodes: int, cores: int) -> Policy:
    """A learner on each node, and actors on its other cores."""
    return policies.parse(f"multi_learner_coarse:actors={cores - nodes},learners={nodes}")


def server(nodes: int, cores: int) -> Policy:
    """A parameter server, and workers on all other cores."""
    return policies.parse(f"central:workers={cores - 1}")


def split(nodes: int, cores: int) -> Policy:
    """A learner and a replica that acts on each node, and environments on its other cores."""
    workers = cores - 2 * nodes
    return policies.parse(f"split_inference:workers={workers},inference={nodes},learners={nodes}")


def mirrors(nodes: int, cores: int) -> Policy:
    """Everything on every core."""
    return policies.parse(f"mirrored:workers={cores}")


def taking(sized: Sized, groups: Callable[[int], int]) -> Sized:
    """The same without waiting: an update takes so many groups, and each actor has params about once an unroll."""

    def found(nodes: int, cores: int) -> Policy:
        policy, take = sized(nodes, cores), groups(nodes)
        every = max(1, policy.replicas("act") // take)
        return replace(policy, cuts={"experience": Cut("async", take=take), "params": Cut("async", every=every)})

    return found


def one_by_one(nodes: int, cores: int) -> Policy:
    """A server that applies each gradient as it comes; each worker has params about once a gradient."""
    return policies.parse(f"central:workers={cores - 1},mode=async,pull={cores - 1}")


ADDED = 4
"""Groups that an update of Ape-X adds to the replay: as many as there were in the profile of its draws."""


def replay_stores(nodes: int, cores: int) -> Policy:
    """Stores, a learner, and actors on all other cores; each actor has params about once an unroll."""
    stores = min(ADDED, 2 * nodes)
    actors = (cores - stores - 1) // ADDED * ADDED
    text = f"actors={actors},stores={stores},mode=async,take={ADDED},publish={max(1, actors // ADDED)}"
    return policies.parse(f"distributed_replay:{text}")


def replay_at_learner(nodes: int, cores: int) -> Policy:
    """One learner with the replay, and actors on all other cores."""
    actors = (cores - 1) // ADDED * ADDED
    return taking(lambda *_: policies.parse(f"single_learner_coarse:actors={actors}"), lambda _: ADDED)(nodes, cores)


CASES = {
    "ppo": Case(
        "PPO", "ppo", {"epochs": 4, "minibatches": 4}, "HalfCheetah-v5", 16, (16, 128),
        {
            "single_learner_coarse": coarse,
            "single_learner_fine": fine,
            "multi_learner": peers,
            "multi_learner_coarse": learner_each,
            "central": server,
            "split_inference": split,
        },
    ),
    "impala": Case(
        "IMPALA", "impala", {"unroll": 20}, "HalfCheetah-v5", 16, (16, 128),
        {
            "single_learner_coarse, async": taking(coarse, lambda _: 8),
            "multi_learner_coarse, async": taking(learner_each, lambda nodes: 8 * nodes),
            "central, async": one_by_one,
            "multi_learner": peers,
            "multi_learner_coarse": learner_each,
        },
    ),
    "seed_rl": Case(
        "SEED RL", "seed_rl", {"unroll": 20}, "HalfCheetah-v5", 16, (16, 128),
        {"single_learner_fine": fine, "split_inference": split},
    ),
    "apex": Case(
        "Ape-X", "apex_dpg", {"unroll": 32, "draws": 1, "batch": 512}, "HalfCheetah-v5", 4, (16,),
        {"distributed_replay, async": replay_stores, "single_learner_coarse, async": replay_at_learner},
    ),
    "es": Case(
        "Evolution strategies", "es", {}, "HalfCheetah-v5?time_limit=100", 32, (32, 128),
        {"mirrored": mirrors, "multi_learner": peers, "single_learner_coarse": coarse, "central": server},
    ),
}  # fmt: skip


@dataclass
class Options:
    """What to simulate."""

    algorithms: tuple[str, ...] = tuple(CASES)
    nodes: tuple[int, ...] = (1, 10, 100, 1000, 10000)
    seconds: float = 120.0
    """For each profile that is not saved."""
    page: bool = False
    """Write docs/scaling.md and docs/scaling.png."""


def costs_of(case: Case, seconds: float) -> Costs:
    """What the work costs on this machine, measured with few environments and with many."""
    found = []
    for envs in case.profiled:
        bound, env, plan = prepare_plan(case.algorithm, case.env, None, envs=envs)
        found.append(saved_or_taken(bound, env, plan, progress_bar, seconds=seconds).costs)
    costs = found[0]
    for more in found[1:]:
        timings: dict[str, tuple[Timing, ...]] = dict(costs.timings)
        for name, timed in more.timings.items():
            known = {(t.envs, t.threads) for t in timings.get(name, ())}
            timings[name] = (*timings.get(name, ()), *(t for t in timed if (t.envs, t.threads) not in known))
        ops = {name: tuple(sorted({*costs.ops.get(name, ()), *curve})) for name, curve in more.ops.items()}
        costs = replace(costs, timings=timings, ops={**costs.ops, **ops})
    return with_calls_of_ray(costs)


@dataclass
class Cell:
    """One policy on so many nodes."""

    refused: str = ""
    prediction: Prediction | None = None
    steps_per_update: float = 0.0
    settled: bool = True
    """Whether every replica was heard before counting; if not, lag is not known."""

    @property
    def steps_per_second(self) -> float:
        """Environment steps; 0 if it was refused."""
        return 0.0 if self.prediction is None else self.prediction.steps_per_second

    @property
    def lag(self) -> float | None:
        """Mean lag of what is learned from, in updates; None where nobody counts it."""
        flows = {} if self.prediction is None else self.prediction.flows
        counted = [flow.lag_mean for flow in flows.values() if flow.lags]
        return max(counted) if counted else None if "samples" in flows else 0.0


@dataclass
class Row:
    """One policy of a case, on all numbers of nodes."""

    policy: str
    cells: dict[int, Cell] = field(default_factory=dict)
    gains: dict[str, float] = field(default_factory=dict)
    """What is thought away -> how many times as fast it would be at `judged` nodes."""
    judged: int = 0
    learners: int = 1
    """Replicas that compute gradients there."""

    def efficiency(self, nodes: int) -> float:
        """Steps/s of a node, relative to one node alone."""
        first = min(self.cells)
        return self.cells[nodes].steps_per_second / nodes / (self.cells[first].steps_per_second / first)


def simulate_cell(case: Case, policy: Policy, costs: Costs, kind: NodeKind) -> Cell:
    """Simulate one policy on all nodes of a kind."""
    groups = policy.replicas("env")
    try:
        bound, env, plan = prepare_plan(
            case.algorithm, case.env, policy, envs=groups * case.envs_each, groups=groups, engine="ray"
        )
        deployment = on_cluster(plan, Cluster((kind,)), MOST_EXACT)
        heard = updates_until_all_are_heard(deployment)
        settles = heard <= MANY_UPDATES
        counts = (2 * heard, 2 * heard) if settles else (heard, MANY_UPDATES)
        found = SimulatedEngine(plan, bound, env, costs, deployment=deployment).run(*counts)
    except TesseraError as error:
        return Cell(refused=str(error))
    return Cell("", found, float(plan.envs_per_update) * bound.schedule.steps, settles)


def updates_until_all_are_heard(deployment: Deployment) -> int:
    """Updates in which each simulated replica contributes about once."""
    plan = deployment.plan
    if plan.solo:
        return plan.fragments[plan.home("grad")].replicas
    return max(1, plan.groups // plan.batches)


def operators_in(name: str) -> set[str]:
    """Operators in the name of a segment or an Op."""
    return set(re.findall(r"\b(env|act|store|grad|apply)\b", name))


def without_learning(costs: Costs) -> Costs:
    """Storing, gradients and applying them take no time."""
    learning = {"store", "grad", "apply"}
    nothing = (Work(0.0, 0.0),)
    timings = {
        name: tuple(replace(t, calls=nothing) for t in timed) if operators_in(name) <= learning else timed
        for name, timed in costs.timings.items()
    }
    ops = {name: ((1, 0.0),) if operators_in(name) <= learning else curve for name, curve in costs.ops.items()}
    return replace(costs, timings=timings, ops=ops)


def without_stragglers(costs: Costs) -> Costs:
    """Every call takes as long as the mean of all."""

    def mean(timing: Timing) -> Timing:
        seconds, cores = (statistics.fmean(call[k] for call in timing.calls) for k in (0, 1))
        return replace(timing, calls=(Work(seconds, cores),))

    return replace(costs, timings={name: tuple(map(mean, timed)) for name, timed in costs.timings.items()})


WITHOUT: dict[str, Callable[[Costs, NodeKind], tuple[Costs, NodeKind]]] = {
    "messages": lambda costs, kind: (replace(costs, remote_links=LinkCosts()), kind),
    "network": lambda costs, kind: (costs, replace(kind, bandwidth=NodeKind.bandwidth, latency=0.0)),
    "learning": lambda costs, kind: (without_learning(costs), kind),
    "stragglers": lambda costs, kind: (without_stragglers(costs), kind),
}
"""What takes no time: work at both ends of a message between nodes; the network; learning; the slowest of all."""


def simulate_row(case: Case, title: str, costs: Costs, node: NodeKind, sizes: tuple[int, ...]) -> Row:
    """Simulate a policy on all numbers of nodes, and find what limits it at one of them."""
    row, sized = Row(title), case.candidates[title]
    for nodes in sizes:
        begun, policy = time.perf_counter(), sized(nodes, nodes * node.cores)
        cell = row.cells[nodes] = simulate_cell(case, policy, costs, replace(node, count=nodes))
        what = cell.refused or f"{cell.steps_per_second:14,.0f} steps/s, {cell.steps_per_update:14,.0f} an update"
        limit = "" if cell.prediction is None else cell.prediction.bottleneck
        print(f"  {title:30s}{nodes:>7,} {what}  {limit}  ({time.perf_counter() - begun:.1f} s)", flush=True)
    row.judged = max((n for n in sizes if n <= JUDGED and not row.cells[n].refused), default=0)
    if row.judged:
        policy, kind = sized(row.judged, row.judged * node.cores), replace(node, count=row.judged)
        row.learners = policy.replicas("grad")
        for name, change in WITHOUT.items():
            there = simulate_cell(case, policy, *change(costs, kind))
            row.gains[name] = there.steps_per_second / row.cells[row.judged].steps_per_second
        gains = ", ".join(f"{name} × {gain:.2f}" for name, gain in row.gains.items())
        print(f"  {'':30s}{row.judged:>7,} without {gains}", flush=True)
    return row


def main(options: Options) -> None:
    """Simulate all."""
    begun = time.perf_counter()
    node = load_cluster(CLUSTER).kinds[0]
    found: dict[str, list[Row]] = {}
    for name in options.algorithms:
        case = CASES[name]
        costs = costs_of(case, options.seconds)
        print(f"{case.title}, {case.env}", flush=True)
        found[name] = [simulate_row(case, title, costs, node, options.nodes) for title in case.candidates]
    print(f"{time.perf_counter() - begun:.0f} s")
    if options.page:
        beside = beside_published(costs_of(CASES["es"], options.seconds), node)
        write_page(CASES, found, node, beside, MOST_EXACT)


if __name__ == "__main__":
    main(tyro.cli(Options))
